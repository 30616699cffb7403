"""Quantization and dequantization move through random graphs, and every answer stays the same, bit for bit.

If this fails, a rule is wrong for some combination of operators: a quantized model answers wrongly on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, i8, u8
from engine.onnx import model_to_proto
from engine.ops import evaluate_model
from engine.passes import GraphRewrite, Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.qdq_propagation import DequantizeSinking, QuantizeHoisting, QuantizePairElimination
from engine.passes.common.quantization_capabilities import PrecisionRestriction, QuantizationCapabilities

KINDS = {np.uint8: u8, np.int8: i8}
SCALES = [0.05, 0.1, 0.03]
RNG = np.random.default_rng(5)
WEIGHTS = RNG.integers(-127, 128, (6, 64, 1, 1)).astype(np.int8)


def ints(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))


def parameters(draw: st.DrawFn) -> tuple[Constant, Constant]:
    kind = draw(st.sampled_from(list(KINDS)))
    zero = draw(st.sampled_from([0, 7, 100]))
    return Constant(np.float32(draw(st.sampled_from(SCALES)))), Constant(kind(zero))


def dims(value: Node) -> tuple[int, ...]:
    return value.output(0).shape.get_shape()


def moved(draw: st.DrawFn, value: Node) -> Node:
    """An operator that only moves, compares or limits elements of a map [1, C, H, W]."""
    _, channels, height, width = dims(value)
    choices: list[Callable[[], Node]] = [
        lambda: ops.Transpose(value, perm=draw(st.sampled_from([(0, 2, 3, 1), (0, 1, 3, 2), (0, 3, 2, 1)]))),
        lambda: ops.Reshape(ops.Reshape(value, ints(1, -1)), ints(1, width, height, channels)),
        lambda: ops.Relu(value),
        lambda: ops.Clip(value, Constant(np.float32(draw(st.sampled_from([-0.5, 0, 0.025])))), Constant(np.float32(1))),
        lambda: ops.Slice(value, ints(0), ints(max(height - 1, 1)), ints(2)),
        lambda: ops.Tile(value, ints(1, 1, 1, 2)) if width < 8 else ops.Identity(value),
    ]
    if min(height, width) > 1:
        choices.append(lambda: ops.MaxPool(value, kernel_shape=[2, 2]))
    if channels % 2 == 0:
        choices.append(lambda: ops.Split(value, axis=1, num_outputs=2).output(draw(st.sampled_from([0, 1]))).node)
    if channels % 4 == 0:
        choices.append(lambda: ops.DepthToSpace(value, blocksize=2))
    return draw(st.sampled_from(choices))()


@st.composite
def graphs(draw: st.DrawFn) -> Model:
    """Quantized inputs through a random graph; each value that is left over is an output."""
    inputs, values = [], []
    for index in range(draw(st.integers(1, 2))):
        scale, zero = parameters(draw)
        inputs.append(Parameter(KINDS[zero.data.dtype.type], [1, 4, 4, 4], f"x{index}"))
        values.append(ops.DequantizeLinear(inputs[-1], scale, zero))
    for _ in range(draw(st.integers(1, 7))):
        index = draw(st.integers(0, len(values) - 1))
        value = values[index]
        what = draw(st.sampled_from(["move", "move", "quantize", "join", "split"]))
        if what == "move":
            values[index] = moved(draw, value)
            if values[index].op_type == "Split":
                halves = values[index].outputs
                values[index] = ops.Identity(halves[0])
                values.append(ops.Identity(halves[1]))
        elif what == "quantize":
            given = parameters(draw)
            values[index] = ops.DequantizeLinear(ops.QuantizeLinear(value, *given), *given)
        elif what == "join":
            other = draw(st.sampled_from(values))
            if dims(other)[2:] == dims(value)[2:] and dims(value)[1] + dims(other)[1] <= 64:
                values[index] = ops.Concat(value, other, axis=1)
        else:
            values.append(value)
    ends = [_end(draw, value) for value in values]
    return Model(ends, inputs)


def _end(draw: st.DrawFn, value: Node) -> Node:
    if draw(st.booleans()):
        return ops.QuantizeLinear(value, *parameters(draw))
    channels = dims(value)[1]
    if channels > 64:
        return ops.Identity(value)
    weights = ops.DequantizeLinear(Constant(WEIGHTS[:, :channels].copy()), Constant(np.float32(0.01)))
    return ops.Conv(value, weights)


def sample(model: Model) -> list[Any]:
    rng = np.random.default_rng(11)
    limits = [np.iinfo(p.output(0).element_type.numpy) for p in model.parameters]
    return [rng.integers(bound.min, bound.max + 1, (1, 4, 4, 4)).astype(bound.dtype) for bound in limits]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_moving_quantization_changes_no_bit(model: Model) -> None:
    feed = sample(model)
    expected = evaluate_model(model, feed)
    graph, manager = model.clone(), Manager(checked=True)
    manager.register_pass(GraphRewrite([DequantizeSinking, QuantizeHoisting, QuantizePairElimination], "Quantization"))
    for _ in range(12):
        if not manager.run_passes(graph):
            break
    else:
        pytest.fail("the rules do not come to an end")
    for got, wanted in zip(evaluate_model(graph, feed), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_the_whole_pipeline_gives_the_answer_of_onnxruntime(model: Model) -> None:
    """Within one quantum: only the products at the end are scaled in another order."""
    feed = sample(model)
    graph, manager = model.clone(), Manager()
    manager.register_pass(CommonOptimizations)
    declared = [PrecisionRestriction(operator="Conv"), PrecisionRestriction(operator="MatMul")]
    QuantizationCapabilities("ACME", declared).configure(manager.pass_config)
    manager.run_passes(graph)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model_to_proto(model).SerializeToString(), options)
    names = [parameter.friendly_name for parameter in model.parameters]
    wanted = session.run(None, dict(zip(names, feed, strict=True)))
    for got, exact in zip(evaluate_model(graph, feed), wanted, strict=True):
        if got.dtype == np.float32:
            np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-4)
        else:
            assert np.abs(got.astype(int) - exact.astype(int)).max(initial=0) <= 1
