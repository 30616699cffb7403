"""Small cases of the kernels of GPUs that share work by other means than tiles of products, against CPU.

Few enough that Oclgrind runs all of them: if a case fails there, a kernel has a race or leaves its memory, and its
answers on a GPU are right only sometimes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering import recurrent
from engine_opencl.lowering.conv import gpu_convolution
from engine_opencl.lowering.conv.depthwise import Strip
from engine_opencl.lowering.conv.direct_convolution import Direct
from engine_opencl.lowering.conv.implicit_gemm import Implicit
from engine_opencl.lowering.conv.winograd import Winograd
from engine_opencl.lowering.matmul.tile_candidates import TILES

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, Result
from engine.ir.element_type import ElementType

Build = Callable[..., Sequence[Node | Output]]
SMALL = next(tile for tile in TILES if tile.m == tile.n == 32)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device poses as a GPU with the limits of most, and with memory of its own."""
    device = device_of("0")
    facts = replace(device.facts, kind="gpu", compute_units=132, local_bytes=48 << 10)
    monkeypatch.setattr(device, "facts", replace(facts, max_work_group=min(facts.max_work_group, 1024)))
    monkeypatch.setattr(device, "memory_kind", "staged")


def values(*shape: int) -> np.ndarray:
    """Numbers from 0.25 to 2.25: sums of them do not cancel, so errors stay relative."""
    return np.random.default_rng(sum(shape)).random(shape, np.float32) * 2 + np.float32(0.25)


def check(build: Build, *inputs: np.ndarray, terms: int) -> None:
    """All results equal CPU's, up to the rounding of sums of so many terms."""
    parameters = [Parameter(ElementType.from_numpy(each.dtype), each.shape) for each in inputs]
    model = Model([Result(each) for each in build(*parameters)], parameters, name="case")
    expected, found = (Core().compile_model(model, device)(list(inputs)).values() for device in ("CPU", "OPENCL"))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        largest = float(np.max(np.abs(other), initial=0))
        np.testing.assert_allclose(one, other, rtol=0, atol=2 * terms * 2.0**-24 * largest)


@pytest.mark.parametrize("shape", [(3, 33), (2, 4100), (3, 33, 5), (1, 40, 300)], ids=str)
def test_rows(shape: tuple[int, ...]) -> None:
    """Rows of few lanes and of whole groups, in one chunk and in several, along memory and across it."""
    axes, length = Constant(np.array([1])), shape[1]

    def build(x: Any) -> list[Node]:
        along = [ops.create("Softmax", [x], {"axis": 1}), ops.create("LpNormalization", [x], {"axis": 1, "p": 2})]
        return [*along, *(ops.create(f"Reduce{each}", [x, axes]) for each in ("Sum", "LogSumExp"))]

    check(build, values(*shape), terms=length + 16)


@pytest.mark.parametrize("length", [33, 4100])
def test_normalizations(length: int) -> None:
    def build(x: Any) -> list[Node]:
        scale, shift = Constant(values(length)), Constant(values(length) / 2)
        channels = ops.create("Reshape", [x, Constant(np.array([1, 2, length]))])
        return [
            ops.create("LayerNormalization", [x, scale, shift], {"axis": -1}),
            ops.create("RMSNormalization", [x, scale], {"axis": -1}),
            ops.create("GroupNormalization", [channels, *[Constant(values(2))] * 2], {"num_groups": 1}),
        ]

    check(build, values(2, length), terms=4 * length)


def test_parts_of_long_rows() -> None:
    """A second launch joins them."""
    axes = Constant(np.array([1]))
    check(
        lambda x: [ops.create("ReduceSum", [x, axes]), ops.create("ReduceMax", [x, axes])], values(1, 9000), terms=9000
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_orders_and_running_sums(axis: int) -> None:
    def build(x: Any) -> list[Node | Output]:
        largest = ops.create("TopK", [x, Constant(np.array([5]))], {"axis": axis})
        running = ops.create("CumSum", [x, Constant(np.array(axis))])
        return [*largest.outputs, running, ops.create("ArgMax", [x], {"axis": axis})]

    check(build, values(*((700, 2) if axis == 0 else (2, 700))), terms=700)


@pytest.mark.parametrize("shape", [(3, 70, 40), (40, 70, 3), (1, 300, 9)], ids=str)
def test_narrow_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    check(lambda x, y: [ops.create("MatMul", [x, y])], values(m, k), values(k, n), terms=k)
    check(lambda x, y: [ops.create("Gemm", [x, y], {"transB": 1})], values(m, k), values(n, k), terms=k)


@pytest.mark.parametrize(
    "variant", [Winograd(), Implicit(SMALL), Implicit(replace(SMALL, splits=3)), Direct(2)], ids=str
)  # fmt: skip
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_convolutions(variant: Any, op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bias, a residual and an activation, on maps that no tile divides."""
    if isinstance(variant, Winograd) and op_type != "Conv":
        pytest.skip("Winograd's algorithm has no transposed convolutions")
    monkeypatch.setattr(gpu_convolution, "variants_of", lambda facts, c: [variant])
    weights, bias = values(5, 5, 3, 3) - 1, values(5) - 1
    attributes = {"pads": [1, 1, 1, 1], "strides": [1, 1] if op_type == "Conv" else [2, 2]}
    x = values(2, 5, 5, 7)

    def build(x: Any, residual: Any) -> list[Node]:
        node = ops.create(op_type, [x, Constant(weights), Constant(bias)], attributes)
        return [ops.Relu(ops.Add(node, residual))]

    # Terms of both signs: their sizes, of up to 2.25 x 1.25, exceed the results by less than 8.
    check(build, x, values(2, 5, *((5, 7) if op_type == "Conv" else (9, 13))), terms=8 * 9 * (45 + 16))


def test_depthwise_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_convolution, "variants_of", lambda facts, c: [Strip(4)])
    weights = Constant(values(6, 1, 3, 3))
    attributes = {"group": 3, "pads": [1, 0, 0, 1]}
    check(lambda x: [ops.create("Conv", [x, weights], attributes)], values(1, 3, 6, 7), terms=9)


@pytest.mark.parametrize("is_sequence", [True, False], ids=["sequence", "steps"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(op_type: str, is_sequence: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are below 1, and weights so small that a step shrinks errors of the last one."""
    found = recurrent._candidates
    monkeypatch.setattr(
        recurrent, "_candidates", lambda *args: sorted(found(*args), key=lambda c: bool(c.group) != is_sequence)
    )
    hidden, gates = 20, {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    weights = [Constant((values(2, gates * hidden, length) - 1) / 16) for length in (3, hidden)]
    attributes = {"hidden_size": hidden, "direction": "bidirectional"}
    build = getattr(ops, op_type)
    check(lambda x: build(x, *weights, num_outputs=2, **attributes).outputs, values(3, 2, 3), terms=8 * hidden)


def test_attention_by_products() -> None:
    """Of few queries: its softmax is a kernel of its own."""
    operands = values(1, 2, 3, 5), values(1, 2, 70, 5), values(1, 2, 70, 7)
    check(lambda q, k, v: [ops.create("Attention", [q, k, v])], *operands, terms=5 * 16 + 2 * 70)


def test_boxes() -> None:
    """The selected boxes are exact."""
    low = values(1, 70, 2) / 4
    boxes, scores = np.concatenate([low, low + values(1, 70, 2)[::-1] / 4], axis=-1), values(1, 3, 70)
    limits = [Constant(np.array([20])), Constant(np.float32([0.4])), Constant(np.float32([0.5]))]
    check(lambda b, s: [ops.create("NonMaxSuppression", [b, s, *limits])], boxes, scores, terms=0)
