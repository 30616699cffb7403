"""`OperatorDecomposition`: operators, and forms of operators, that few devices have a kernel for, as simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final, TypeAlias

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, TensorType, boolean, f32, i64
from engine.ops.gather import ReverseSequenceSpec
from engine.ops.matmul import GemmSpec
from engine.ops.reshape import DropoutSpec
from engine.passes.common.classical_rules import CLASSICAL_RULES
from engine.passes.common.training_rules import TRAINING_RULES
from engine.passes.config import PassConfig
from engine.passes.fusion import fits, nodes_between
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_to_steps
from engine.passes.surgery import replace_node

Rule: TypeAlias = "Callable[[Node], Sequence[Output] | None]"
"""The values that replace the outputs of a node; None to leave it. All its inputs are tensors of known rank."""


class OperatorDecomposition(MatcherPass):
    """Replaces operators by others with the same results.

    They are optimizers (Adagrad, Adam, Momentum), arithmetic of `ai.onnx.ml`, a BatchNormalization whose parameters are
    computed or that computes its statistics, a Gemm whose C is scaled, or is not a row of the result, a Dropout with a
    mask, a OneHot of real indices, and of known lengths ReverseSequence and MaxUnpool.
    """

    def __init__(self) -> None:
        super().__init__()

        def callback(m: Matcher) -> bool:
            return not self.transformation_callback(m.match_root) and _replace(m.match_root, self.config)

        self.register_matcher(Matcher(wrap_type(list(_RULES)), self.name), callback)


def _replace(node: Node, config: PassConfig | None) -> bool:
    given = [value for value in node.input_values if value is not None]
    if not all(isinstance(value.type, TensorType) and value.shape.rank.is_static for value in given):
        return False
    values = _RULES[f"{node.domain}.{node.op_type}" if node.domain else node.op_type](node)
    if values is None:
        return False
    pairs = list(zip(node.outputs, values, strict=False))
    if not all(fits(old, new) or not old.num_consumers for old, new in pairs):
        return False
    made = nodes_between(values, given)
    if config is not None and not config.lowers(made):
        return False
    for index, each in enumerate(made):
        if not each.has_own_name:  # an error of an inference names the user's node
            each.friendly_name = f"{node.friendly_name}/{each.op_type}_{index}"
    for index, (_, value) in enumerate(pairs):
        value.node.friendly_name = node.friendly_name if node.num_outputs == 1 else f"{node.friendly_name}.{index}"
    copy_to_steps(node, made)
    replace_node(node, [new for _, new in pairs])
    return True


def _batch_normalization(node: Node) -> Sequence[Output] | None:
    from engine.ops.normalization import BatchNormalizationSpec  # with its family

    spec = BatchNormalizationSpec.of(node)
    x, scale, bias, mean, variance = (node.input_value(index) for index in range(5))
    if len({x.element_type, scale.element_type, mean.element_type}) > 1:
        return None
    rank = len(x.shape)
    if rank < 2:
        return None
    along = Constant(np.array([-1, *[1] * (rank - 2)], np.int64))

    def wide(value: Output) -> Output:
        return ops.Reshape(value, along).output(0)

    running: list[Output] = []
    if spec.training_mode:
        axes = Constant(np.array([axis for axis in range(rank) if axis != 1], np.int64))
        centre = ops.ReduceMean(x, axes, keepdims=1)
        difference = ops.Sub(x, centre)
        spread = ops.ReduceMean(ops.Mul(difference, difference), axes, keepdims=1)
        flat = Constant(np.array([-1], np.int64))
        for old, new in ((mean, centre), (variance, spread)):
            kept = ops.Mul(old, Constant(spec.momentum, old.element_type))
            added = ops.Mul(ops.Reshape(new, flat), Constant(1 - spec.momentum, old.element_type))
            running.append(ops.Add(kept, added).output(0))
        deviation = ops.Sqrt(ops.Add(spread, Constant(spec.epsilon, x.element_type))).output(0)
    else:
        difference = ops.Sub(x, wide(mean))
        deviation = wide(ops.Sqrt(ops.Add(variance, Constant(spec.epsilon, variance.element_type))).output(0))
    factor = ops.Div(wide(scale), deviation)
    return [ops.Add(ops.Mul(difference, factor), wide(bias)).output(0), *running]


def _gemm(node: Node) -> Sequence[Output] | None:
    """A product, and a sum with C."""
    spec = GemmSpec.of(node)
    c = spec.input(2)
    if c is None or isinstance(c.node, Constant) or c.element_type not in (f32,):
        return None
    attributes = {"alpha": spec.alpha, "transA": int(spec.transA), "transB": int(spec.transB)}
    product = ops.create("Gemm", [node.input_value(0), node.input_value(1)], attributes)
    scaled = c if spec.beta == 1 else ops.Mul(c, Constant(spec.beta, c.element_type)).output(0)
    return [ops.Add(product, scaled).output(0)]


def _dropout(node: Node) -> Sequence[Output] | None:
    """The mask of an inference keeps everything."""
    if DropoutSpec.of(node).may_train or node.num_outputs < 2 or not node.output(1).num_consumers:
        return None
    x = node.input_value(0)
    return [ops.Identity(x).output(0), ops.Expand(Constant(True, boolean), ops.Shape(x)).output(0)]


def _one_hot(node: Node) -> Sequence[Output] | None:
    """Real indices, and depths, become integers."""
    indices, depth, values = (node.input_value(index) for index in range(3))
    if indices.element_type is i64:
        return None
    whole = ops.Cast(indices, to=i64)
    return [ops.create("OneHot", [whole, depth, values], node.attributes).output(0)]


def _reverse_sequence(node: Node) -> Sequence[Output] | None:
    """Rows by index: of the first steps of a sample from the last one back, of others their own."""
    spec, x, lengths = ReverseSequenceSpec.of(node), node.input_value(0), node.input_value(1)
    if not x.shape.is_static or lengths.element_type is not i64:
        return None
    shape = x.shape.get_shape()
    samples, steps = shape[spec.batch_axis], shape[spec.time_axis]
    order = (spec.time_axis, spec.batch_axis)
    at = Constant(np.arange(steps).reshape((-1, 1) if order[0] == 0 else (1, -1)))
    strides = (shape[1], 1)
    starts = np.arange(samples) * strides[spec.batch_axis]
    sample = Constant(starts.reshape((1, -1) if order[0] == 0 else (-1, 1)))
    length = _checked_lengths(lengths, steps)
    if order[0] != 0:
        length = ops.Unsqueeze(length, Constant(np.array([1], np.int64))).output(0)
    back = ops.Sub(ops.Sub(length, Constant(1, i64)), at)
    taken = ops.Where(ops.Less(at, length), back, at)
    row = ops.Add(ops.Mul(taken, Constant(strides[spec.time_axis], i64)), sample)
    inner = shape[2:]
    rows = ops.Reshape(x, Constant(np.array([shape[0] * shape[1], *inner], np.int64)), allowzero=1)
    flat = ops.Reshape(row, Constant(np.array([-1], np.int64)))
    gathered = ops.Gather(rows, flat, axis=0)
    return [ops.Reshape(gathered, Constant(np.array(shape, np.int64)), allowzero=1).output(0)]


def _checked_lengths(lengths: Output, steps: int) -> Output:
    """The lengths, as elements of 0..steps: another one is an index out of range, also if it is negative."""
    is_negative = ops.Less(lengths, Constant(0, i64))
    below = ops.Sub(lengths, Constant(steps + 1, i64))
    return ops.Gather(Constant(np.arange(steps + 1)), ops.Where(is_negative, below, lengths), axis=0).output(0)


def _max_unpool(node: Node) -> Sequence[Output] | None:
    """A scatter into zeros."""
    x, indices = node.input_value(0), node.input_value(1)
    if not x.shape.is_static or node.output(0).shape.is_dynamic:
        return None
    shape = node.output(0).shape.get_shape()
    flat = Constant(np.array([-1], np.int64))
    if prod(shape) * x.element_type.bits > 8 * _MAX_ZEROS:
        return None
    zeros = Constant(np.zeros(prod(shape), x.element_type.numpy))
    placed = ops.ScatterElements(zeros, ops.Reshape(indices, flat), ops.Reshape(x, flat), axis=0)
    return [ops.Reshape(placed, Constant(np.array(shape, np.int64)), allowzero=1).output(0)]


_MAX_ZEROS: Final = 1 << 24
"""Bytes of a result that begins as a constant of zeros."""
_RULES: Final[dict[str, Rule]] = {
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
    "Gemm": _gemm,
    "MaxUnpool": _max_unpool,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    **{f"ai.onnx.preview.training.{name}": rule for name, rule in TRAINING_RULES.items()},
    **{f"ai.onnx.ml.{name}": rule for name, rule in CLASSICAL_RULES.items()},
}

OperatorDecomposition.removes = frozenset(_RULES)
