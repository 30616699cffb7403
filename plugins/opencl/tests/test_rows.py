"""Operators that look at whole rows of elements, in the shapes that work groups take on CPUs and on GPUs.

If a case fails here, a softmax, a normalization or a reduction of some length is wrong on one kind of device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering.rows import rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, Result
from engine.ir.element_type import ElementType

LENGTHS = (1, 31, 32, 33, 255, 256, 257, 4097)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -2.5, 100, -100, 1e30, -1e30], np.float32)


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind."""
    pose(monkeypatch, request.param)
    return str(request.param)


def pose(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """On a large device rows have more items and are cut into more parts."""
    device = device_of("0")
    units = {"cpu": 2, "gpu": 1, "large gpu": 64}[kind]
    facts = replace(device.facts, kind=kind.split()[-1], compute_units=units, max_work_group=256)
    monkeypatch.setattr(device, "facts", facts)


def random_values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def check(build: Any, *values: np.ndarray, tolerance: float = 2e-5) -> None:
    """All results equal CPU's, up to rounding."""
    parameters = [Parameter(ElementType.from_numpy(value.dtype), value.shape) for value in values]
    built: list[Node | Output] = build(*parameters)
    model = Model([Result(each) for each in built], parameters, name="case")
    answers = [Core().compile_model(model, device)(list(values)).values() for device in ("CPU", "OPENCL")]
    for node, expected, found in zip(built, *answers, strict=True):
        assert found.shape == expected.shape
        largest = float(np.max(np.abs(expected), initial=0, where=np.isfinite(expected)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * largest, equal_nan=True, err_msg=str(node))


def rows(x: Any, axis: int) -> list[Node]:
    """The operators on rows along one axis."""
    axes = Constant(np.array([axis]))
    return [
        ops.create("Softmax", [x], {"axis": axis}),
        ops.create("ReduceMax", [x, axes], {"keepdims": 0}),
        ops.create("ReduceLogSumExp", [x, axes]),
    ]


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(kind: str, length: int, axis: int) -> None:
    """Around the sizes of groups, and more than what items keep."""
    shape = [3, 5, 5]
    shape[axis] = length
    axes = Constant(np.array([axis]))
    check(
        lambda x: [ops.create("Softmax", [x], {"axis": axis}), ops.create("ReduceSum", [x, axes])],
        random_values(*shape),
    )


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("length", [33, 4097])
def test_other_operators(kind: str, length: int, axis: int) -> None:
    shape = [3, 5, 5]
    shape[axis] = length
    axes = Constant(np.array([axis]))

    def build(x: Any) -> list[Node]:
        norms = [ops.create("LpNormalization", [x], {"axis": axis, "p": p}) for p in (1, 2)]
        reductions = [ops.create(op_type, [x, axes]) for op_type in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")]
        return [ops.create("LogSoftmax", [x], {"axis": axis}), *norms, *reductions]

    check(build, np.abs(random_values(*shape)))


@pytest.mark.parametrize("length", [1, 33, 256, 4097])
def test_normalizations(kind: str, length: int) -> None:
    """Also of nearly equal numbers, whose variance as a difference of squares would cancel."""

    def build(x: Any) -> list[Node]:
        scale, shift = Constant(random_values(length, 1)[:, 0]), Constant(random_values(length))
        maps = [Constant(random_values(4)), Constant(random_values(4, 1)[:, 0])]
        groups = ops.create("Reshape", [x, Constant(np.array([1, 4, length]))])
        return [
            ops.create("LayerNormalization", [x, scale, shift], {"axis": -1}),
            ops.create("LayerNormalization", [x, scale], {"axis": -1}),
            ops.create("RMSNormalization", [x, scale], {"axis": -1}),
            ops.create("InstanceNormalization", [groups, *maps]),
            ops.create("GroupNormalization", [groups, *maps], {"num_groups": 2}),
        ]

    check(build, random_values(4, length), tolerance=1e-4)
    check(build, random_values(4, length) + 1000, tolerance=2e-2)


@pytest.mark.parametrize("axes", [(0,), (1, 3), (0, 2, 3), (2, 1)])
def test_axes_in_any_order(kind: str, axes: tuple[int, ...]) -> None:
    def build(x: Any, whole: Any) -> list[Node]:
        given = Constant(np.array(axes))
        floats = [ops.create(op_type, [x, given]) for op_type in ("ReduceMean", "ReduceProd", "ReduceL2")]
        return [*floats, ops.create("ReduceSum", [whole, given]), ops.create("ReduceMin", [whole, given])]

    x = random_values(4, 5, 6, 7)
    check(build, x, (x * 100).astype(np.int64))


@pytest.mark.parametrize("kind", ["cpu", "large gpu"])
@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceLogSumExp", "ReduceL2"])
def test_few_lines_that_are_long(monkeypatch: pytest.MonkeyPatch, kind: str, op_type: str) -> None:
    """They are cut into parts, whose results a second launch joins; integer results are exact."""
    pose(monkeypatch, kind)
    axes = Constant(np.array([1]))

    def build(x: Any, whole: Any) -> list[Node]:
        found = [ops.create(op_type, [x, axes]), ops.create(op_type, [x], {"keepdims": 0})]
        return [*found, ops.create("ReduceSum", [whole, axes])]

    x = random_values(3, 70001)
    whole = np.arange(140002, dtype=np.int64).reshape(2, 70001) << 32
    check(build, x, whole, tolerance=1e-4)
    x[1, 50000] = np.nan
    x[2, 69999] = np.inf
    check(build, x, whole, tolerance=1e-4)


@pytest.mark.parametrize("length", [12, 9000])
def test_special_values_far_apart(kind: str, length: int) -> None:
    """NaN and infinities in different items, and rows of only infinities."""
    x = np.tile(random_values(length), (len(SPECIAL) + 2, 1))
    x[np.arange(len(SPECIAL)), (length - 1) // (1 + np.arange(len(SPECIAL)))] = SPECIAL
    x[-2], x[-1] = -np.inf, np.inf
    check(lambda x: rows(x, 1), x)
    check(lambda x: rows(x, 0), np.ascontiguousarray(x.T))
    scale = Constant(np.ones(length, np.float32))
    check(lambda x: [ops.create("LayerNormalization", [x, scale], {"axis": -1})], x, tolerance=1e-4)


def test_nothing(kind: str) -> None:
    """Empty rows, and no rows."""
    for shape in ((0, 3), (3, 0), (0, 0)):
        check(lambda x: rows(x, 1), np.zeros(shape, np.float32))


SELECTED = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 1, 2], np.float32)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [33, 700])
def test_extremes(kind: str, length: int, axis: int) -> None:
    """Equal elements and NaN in different items."""

    def build(x: Any) -> list[Node]:
        found = [
            ops.create(op_type, [x], {"axis": axis, "select_last_index": last})
            for op_type, last in (("ArgMax", 0), ("ArgMax", 1), ("ArgMin", 1))
        ]
        return [*found, ops.create("Hardmax", [x], {"axis": axis})]

    x = np.round(random_values(*((length, 3) if axis == 0 else (3, length))) * 2)
    check(build, x)
    x.reshape(-1)[::19] = np.resize(SELECTED, x.reshape(-1)[::19].shape)
    check(lambda x: build(x)[:3], x)


@pytest.mark.parametrize(("length", "most"), [(33, 5), (129, 129), (2048, 20), (2049, 2), (5000, 1500), (20000, 40)])
def test_first_in_order(kind: str, length: int, most: int) -> None:
    """One tile, tiles of what is left of tiles, and runs that are merged; equal elements keep their order."""

    def build(x: Any, y: Any) -> list[Output]:
        nodes = [
            ops.create("TopK", [x, Constant(np.array([most]))], {"axis": 1}),
            ops.create("TopK", [y, Constant(np.array([most]))], {"axis": 0, "largest": 0}),
        ]
        return [node.output(index) for node in nodes for index in range(2)]

    x = np.round(random_values(2, length) * 100)
    x[:, ::50] = np.resize(SELECTED, x[:, ::50].shape)
    check(build, x, np.nan_to_num(x, posinf=99, neginf=-99).T.astype(np.int64))


@pytest.mark.parametrize(("is_exclusive", "is_reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("length", [1, 257, 700])
def test_running_sums(kind: str, length: int, is_exclusive: int, is_reverse: int) -> None:
    attributes = {"exclusive": is_exclusive, "reverse": is_reverse}

    def build(x: Any, y: Any) -> list[Node]:
        first = ops.create("CumSum", [x, Constant(np.array(1))], attributes)
        return [first, ops.create("CumSum", [y, Constant(np.array(0))], attributes)]

    x = np.round(random_values(3, length) * 10)
    check(build, x, x.T.astype(np.int32))


@pytest.mark.parametrize("space", [(7, 7), (1,), (90, 100), (3, 4, 5)])
def test_pools_of_whole_maps(kind: str, space: tuple[int, ...]) -> None:
    check(lambda x: [ops.create(f"Global{op}Pool", [x]) for op in ("Average", "Max")], random_values(2, 3, *space))


@given(st.integers(1, 10**4), st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 200), st.integers(1, 9000))
def test_groups(outer: int, length: int, inner: int, units: int, most: int) -> None:
    """For all devices and rows, groups satisfy the kernels' requirements and the device's limits."""
    count = outer * inner
    for kind in ("cpu", "gpu"):
        facts = replace(device_of("0").facts, kind=kind, compute_units=units, max_work_group=most)
        found = rows_of(facts, count, length, inner)
        assert found.group <= most
        for power in (found.lanes, found.per_group):
            assert power == 1 << (power.bit_length() - 1)
        assert found.lanes < 2 * length
        assert found.per_group < 2 * count
        assert found.groups * found.per_group >= count > (found.groups - 1) * found.per_group


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data())
def test_any_shape(monkeypatch: pytest.MonkeyPatch, shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    with monkeypatch.context() as patch:
        pose(patch, data.draw(st.sampled_from(["cpu", "gpu", "large gpu"])))

        def build(x: Any) -> list[Node]:
            softmax = ops.create("Softmax", [x], {"axis": axes[0]})
            return [softmax, *(ops.create(op, [x, Constant(np.array(axes))]) for op in ("ReduceMean", "ReduceMax"))]

        # Away from 0: where values cancel, a mean has no relative accuracy, by which `check` judges.
        check(build, random_values(*shape) + np.float32(4))
