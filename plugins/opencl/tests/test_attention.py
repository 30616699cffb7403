"""Attention in the kernels for CPUs and in those for GPUs: the answers are the reference's.

If a case fails here, every transformer that uses the feature of its name gives its users wrong answers on one kind of
device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, Result
from engine.ir.element_type import ElementType, bf16, f16
from engine.ops.internal import FusedAttention
from engine.plugin_api import SupportLevel
from engine.testing.values import values


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=request.param))
    return str(request.param)


def operands(queries: int, keys: int, heads: int = 2, shared: int | None = None) -> list[np.ndarray]:
    shared = heads if shared is None else shared
    return [values(2, heads, queries, 5), values(2, shared, keys, 5), values(2, shared, keys, 7)]


# A mask whose third row forbids every key; one that reaches fewer keys than there are.
BLIND = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], np.bool_)
FAR = np.where(BLIND, 0.5, -np.inf).astype(np.float32)
PAST = [values(2, 1, 4, 5), values(2, 1, 4, 7)]
CASES: dict[str, tuple[list[np.ndarray | None], dict[str, Any]]] = {
    "plain": ([*operands(3, 5)], {}),
    "rows of several vectors": ([*operands(2, 71)], {}),
    "more keys than a work group has items": ([*operands(2, 300)], {"is_causal": 0}),
    "bool mask with a row of no key": ([*operands(3, 5), BLIND], {"scale": 0.7}),
    "mask of each head": ([*operands(3, 5), np.stack([FAR + 1, FAR * 2])[None]], {}),
    "mask of fewer keys": ([*operands(3, 9), FAR], {}),
    "causal": ([*operands(6, 6)], {"is_causal": 1}),
    "grouped heads": ([*operands(3, 5, 6, 2)], {"is_causal": 1}),
    "window": ([*operands(9, 9)], {"left_window_size": 2, "right_window_size": 1}),
    "softcap": ([*operands(3, 5), FAR], {"softcap": 0.5}),
    "past": ([*operands(3, 3, 2, 1), None, *PAST], {"is_causal": 1}),
    "lengths": ([*operands(2, 6), None, None, None, np.array([4, 6])], {"is_causal": 1}),
    "one of two heads in a row": (
        [values(2, 3, 10), values(2, 4, 10), values(2, 4, 6)],
        {"q_num_heads": 2, "kv_num_heads": 2},
    ),
    "infinite and no numbers": (
        [np.array([[[[np.nan, 1]], [[np.inf, 1]], [[1, 1]]]], np.float32), *[np.ones((1, 3, 2, 2), np.float32)] * 2],
        {},
    ),
}


def run(device: str, model: Model, given: list[np.ndarray]) -> list[np.ndarray]:
    return list(Core().compile_model(model, device)(given).values())


def model_of(arrays: list[np.ndarray | None], make: Any) -> tuple[Model, list[np.ndarray]]:
    given = [each for each in arrays if each is not None]
    parameters = [Parameter(ElementType.from_numpy(each.dtype), each.shape) for each in given]
    waiting = iter(parameters)
    node = make([None if each is None else next(waiting) for each in arrays])
    return Model([Result(output) for output in node.outputs], parameters), given


@pytest.mark.parametrize("name", CASES)
def test_attention(kind: str, name: str) -> None:
    arrays, attributes = CASES[name]
    outputs = 3 if name == "past" else 1
    model, given = model_of(arrays, lambda x: ops.create("Attention", x, attributes, num_outputs=outputs))
    assert not Core().query_model(model, "OPENCL").at(SupportLevel.REFUSED)
    for found, expected in zip(run("OPENCL", model, given), run("TEMPLATE", model, given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_of_no_keys_there_is_nothing(kind: str) -> None:
    model, given = model_of(operands(3, 0), lambda x: ops.create("Attention", x, {}))
    (found,) = run("OPENCL", model, given)
    np.testing.assert_array_equal(found, np.zeros((2, 2, 3, 7)))


@pytest.mark.parametrize("stage", range(4))
def test_the_scores_are_shown(kind: str, stage: int) -> None:
    attributes = {"softcap": 2.0, "qk_matmul_output_mode": stage}
    model, given = model_of([*operands(3, 5), FAR], lambda x: ops.create("Attention", x, attributes, num_outputs=4))
    for found, expected in zip(run("OPENCL", model, given), run("TEMPLATE", model, given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", ["softmax", "guarded"])
def test_rows_that_are_no_numbers(kind: str, rows: str) -> None:
    """Same as in the original graph: a row without keys is NaN after a Softmax, or zeros after a guard."""
    arrays = [*operands(3, 5), BLIND]
    model, given = model_of(arrays, lambda x: FusedAttention(*x, rows=rows, scale=0.7))
    (found,), (expected,) = run("OPENCL", model, given), run("TEMPLATE", model, given)
    assert np.isnan(expected[:, :, 2]).all() == (rows == "softmax")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_exporters_spell_out_becomes_one_operator() -> None:
    """With the mask and the guard of PyTorch's exporter: one launch of a softmax, none of a Where."""
    q, k, v = (Parameter((ElementType.from_numpy(np.dtype("f4"))), (1, 2, 6, 4), name) for name in "qkv")
    scores = ops.create("MatMul", [q, ops.create("Transpose", [k], {"perm": (0, 1, 3, 2)})])
    shares = ops.create("Softmax", [scores], {"axis": -1})
    zero = Constant(np.float32(0))
    guarded = ops.create("Where", [ops.create("IsNaN", [shares]), zero, shares])
    model = Model([Result(ops.create("MatMul", [guarded, v]))], [q, k, v])
    network = Core().compile_model(model, "OPENCL", {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer([values(1, 2, 6, 4)] * 3)
    assert {node.op_type for node in request.profiling_info.nodes} == {"FusedAttention"}


@pytest.mark.parametrize(("narrow", "tolerance"), [(f16, 5e-3), (bf16, 4e-2)], ids=str)
def test_a_mask_of_another_type(kind: str, narrow: ElementType, tolerance: float) -> None:
    """A network in 16 bits whose mask stays in f32."""
    q, k, v = (each.astype(narrow.numpy) for each in operands(3, 5))
    model, given = model_of([q, k, v, FAR], lambda x: FusedAttention(*x, rows="guarded", scale=0.7))
    (found,), (expected,) = run("OPENCL", model, given), run("TEMPLATE", model, given)
    found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
