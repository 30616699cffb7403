"""Native operators whose axes, bounds, sizes or counts are computed during an inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import EngineError, InputError
from engine.ir import ElementType, Model, Node, Parameter, PartialShape, f32, i64
from engine.plugin_api import SupportLevel

Array = np.ndarray[Any, np.dtype[Any]]
X = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def reals(*values: float) -> Array:
    return np.array(values, np.float32)


# Operator, outputs, attributes, and for some runs the inputs after the data (None: omitted).
CASES: dict[str, tuple[str, int, dict[str, Any], list[list[Array | None]]]] = {
    "axes": ("ReduceSum", 1, {"keepdims": 1}, [[ints(1)], [ints(-1)], [ints(0)]]),
    "axes_removed": ("ReduceMax", 1, {"keepdims": 0}, [[ints(1, 2)], [ints(-1, 0)]]),
    "no_axes": ("ReduceL2", 1, {"keepdims": 0}, [[ints()]]),
    "no_axes_noop": ("ReduceMean", 1, {"noop_with_empty_axes": 1}, [[ints()]]),
    "slice": ("Slice", 1, {}, [[ints(1), ints(9), ints(1), ints(2)], [ints(-1), ints(-9), ints(2), ints(-1)]]),
    "pad": ("Pad", 1, {}, [[ints(1, 0, 0, 0, 2, 1), reals(7.0)[0]], [ints(-1, 0, 0, 0, 1, 0), reals(-1.0)[0]]]),
    "top_k": ("TopK", 2, {"axis": 1}, [[ints(3)], [ints(1)], [ints(0)]]),
    "cum_sum": ("CumSum", 1, {}, [[ints(0)[0]], [ints(-1)[0]]]),
    "trilu": ("Trilu", 1, {}, [[ints(1)[0]], [ints(-7)[0]]]),
    "tile": ("Tile", 1, {}, [[ints(1, 2, 1)], [ints(2, 0, 3)]]),
    "expand": ("Expand", 1, {}, [[ints(2, 4, 5, 6)], [ints(1)]]),
    "reshape": ("Reshape", 1, {}, [[ints(0, -1)], [ints(2, 2, 5, 6)]]),
    "unsqueeze": ("Unsqueeze", 1, {}, [[ints(0, -1)], [ints(2)]]),
    "split": ("Split", 2, {"axis": 2}, [[ints(2, 4)], [ints(6, 0)]]),
    "resize_scales": ("Resize", 1, {"mode": "linear"}, [[None, reals(1, 2, 0.5)], [None, reals(1, 1, 3)]]),
    "resize_sizes": ("Resize", 1, {"mode": "nearest"}, [[None, None, ints(4, 7, 3)]]),
}


def model_of(name: str, *, known: bool = True) -> tuple[Model, Node]:
    op_type, count, attributes, runs = CASES[name]
    x = Parameter(f32, PartialShape(X.shape if known else [-1] * X.ndim), "x")
    inputs: list[Parameter | None] = [x]
    for index, value in enumerate(runs[0]):
        lengths = {each[index].shape for each in runs if each[index] is not None}  # type: ignore[union-attr]
        inputs.append(None)
        if value is not None:
            shape = PartialShape(lengths.pop() if len(lengths) == 1 else [-1] * value.ndim)
            inputs[-1] = Parameter(ElementType.from_numpy(value.dtype), shape, f"input_{index}")
    node = ops.create(op_type, inputs, attributes, num_outputs=count)
    return Model(node.outputs, [each for each in inputs if each is not None], name=name), node


def given(run: list[Array | None]) -> Mapping[str, Array]:
    return {"x": X, **{f"input_{index}": value for index, value in enumerate(run) if value is not None}}


@pytest.mark.parametrize("known", [True, False], ids=["known", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_native_and_equal_to_the_reference(name: str, known: bool) -> None:
    core = Core()
    model, node = model_of(name, known=known)
    answer = core.query_model(model, "CPU")
    assert answer[node.friendly_name].level is SupportLevel.NATIVE
    network = core.compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    reference = core.compile_model(model, "TEMPLATE")
    for run in CASES[name][3]:
        got, want = network(given(run)), reference(given(run))
        for index in range(len(want)):
            np.testing.assert_allclose(got[index], want[index], rtol=2e-6, atol=2e-6)


def test_the_profile_names_the_kernel() -> None:
    model, node = model_of("axes")
    request = Core().compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    for run in CASES["axes"][3]:
        request.infer(given(run))
        assert {each.name: each.status for each in request.profiling_info.nodes}[node.friendly_name] == "native"


def test_nodes_after_it_are_native() -> None:
    x, axes = Parameter(f32, PartialShape(X.shape), "x"), Parameter(i64, PartialShape([1]), "axes")
    sums = ops.ReduceSum(x, axes, keepdims=0)
    network = Core().compile_model(Model([ops.Exp(sums)], [x, axes], name="m"), "CPU", {"ALLOW_REFERENCE": False})
    for axis in (0, 2):
        got = network({"x": X, "axes": ints(axis)})[0]
        np.testing.assert_allclose(got, np.exp(X.sum(axis=axis)), rtol=1e-5)


def test_a_position_that_advances_is_evaluated_after_some_runs() -> None:
    x, starts, ends = (Parameter(f32, PartialShape([100]), "x"), *(Parameter(i64, PartialShape([1]), n) for n in "se"))
    node = ops.Slice(x, starts, ends)
    network = Core().compile_model(Model([node], [x, starts, ends], name="m"), "CPU", {"PERF_COUNT": True})
    request, data = network.create_infer_request(), np.arange(100, dtype=np.float32)
    statuses = []
    for start in range(20):
        request.infer({"x": data, "s": ints(start), "e": ints(start + 3)})
        np.testing.assert_array_equal(request.get_tensor(node.friendly_name), data[start : start + 3])
        statuses.append({each.name: each.status for each in request.profiling_info.nodes}[node.friendly_name])
    assert statuses == ["native"] * 8 + ["reference"] * 12
    request.infer({"x": data, "s": ints(19), "e": ints(22)})  # again: it is worth a plan
    assert {each.status for each in request.profiling_info.nodes} == {"native"}


@pytest.mark.parametrize(("name", "wrong"), [("axes", [ints(3)]), ("reshape", [ints(7, -1)]), ("split", [ints(5, 5)])])
def test_a_value_that_the_operator_cannot_take_is_named(name: str, wrong: list[Array | None]) -> None:
    model, node = model_of(name)
    network = Core().compile_model(model, "CPU")
    for _ in range(2):
        with pytest.raises(InputError, match=node.op_type):
            network(given(wrong))
    network(given(CASES[name][3][0]))


def test_a_matrix_of_values_is_refused() -> None:
    x, shape = Parameter(f32, PartialShape(X.shape), "x"), Parameter(i64, PartialShape([300]), "axes")
    with pytest.raises(EngineError, match=r"input 1 \(axes\) is i64\[300\], computed at run time"):
        Core().compile_model(Model([ops.ReduceSum(x, shape)], [x, shape], name="m"), "CPU", {"ALLOW_REFERENCE": False})
