"""`ConvBatchNormFusion`: a batch normalization after a convolution is folded into its weights."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops.conv import ConvSpec
from engine.ops.normalization import BatchNormalizationSpec
from engine.ops.tensors import Array
from engine.passes.common.ranges import fits, magnitudes
from engine.passes.fusion import derived_constant
from engine.passes.pattern import Matcher, attrs_match, consumers_count, wrap_const, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node


class ConvBatchNormFusion(MatcherPass):
    """Folds `BatchNormalization(Conv(x, w, b))`, both with constant parameters, into one Conv (or ConvTranspose).

    With s = scale / sqrt(var + epsilon): w' = w * s for each output channel, b' = (b - mean) * s + shift. The
    weights are computed in double precision and rounded once. Nothing is folded if weights or biases could overflow, or
    lose digits as denormal numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._conv = wrap_type(["Conv", "ConvTranspose"], predicate=consumers_count(1))
        parameters = [wrap_const() for _ in range(4)]
        norm = wrap_type("BatchNormalization", [self._conv, *parameters], attrs_match(training_mode=0))
        self.register_matcher(Matcher(norm, "ConvBatchNormFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        convolution = m.pattern_value_map[self._conv].node
        node = m.match_root
        if node.num_outputs != 1 or self.transformation_callback(node):
            return False
        folded = _fold(convolution, node)
        if folded is None:
            return False
        weights, bias = folded
        fused = ops.create(convolution.op_type, [convolution.input_value(0), weights, bias], convolution.attributes)
        fused.friendly_name = node.friendly_name
        copy_runtime_info(m.matched_nodes, [fused, weights, bias])
        replace_node(node, fused)
        return True


def _fold(convolution: Node, norm: Node) -> tuple[Constant, Constant] | None:
    weights = _constant(convolution.input_value(1))
    bias = _constant(convolution.input_value(2)) if convolution.has_input(2) else None
    if weights is None or (convolution.has_input(2) and bias is None):
        return None
    epsilon = BatchNormalizationSpec.of(norm).epsilon
    parameters = [_constant(norm.input_value(i)) for i in range(1, 5)]
    scale, shift, mean, variance = (p.data.astype(np.float64) for p in parameters if p is not None)
    with np.errstate(all="ignore"):  # a factor that is infinite, or NaN, does not fit
        factor = scale / np.sqrt(variance + epsilon)
        offset = (0.0 if bias is None else bias.data.astype(np.float64)) - mean
        added = offset * factor + shift
        if not scaled_fits(convolution, weights, factor, added):
            return None
    return scaled_weights(convolution, weights, factor), Constant(added.astype(weights.element_type.numpy))


def scaled_fits(convolution: Node, weights: Constant, factor: Array, shift: Array | None) -> bool:
    """Whether `scaled_weights` and the summands of each output channel keep their digits; see `fits`."""
    if 0 in weights.shape:
        return True
    if convolution.op_type == "Conv":
        largest = magnitudes(weights, weights.shape, range(1, len(weights.shape)))
    else:
        group = ConvSpec.of(convolution).group
        grouped = group, weights.shape[0] // group, weights.shape[1], -1
        largest = magnitudes(weights, grouped, (1, 3)).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return fits(weights.element_type, largest * np.abs(factor), shift)


def scaled_weights(convolution: Node, weights: Constant, factor: Array) -> Constant:
    """The weights of a Conv or ConvTranspose that multiply each output channel by its `factor`, [M] float64."""
    shape = weights.shape
    if convolution.op_type == "Conv":
        spread = factor.reshape(-1, *([1] * (len(shape) - 1)))
        return derived_constant([weights], shape, lambda old: _product(old, spread))
    # [C, M / group, ...]: output channel g * M / group + m is at [:, m] of the rows of group g.
    group = ConvSpec.of(convolution).group
    grouped = (group, shape[0] // group, *shape[1:])
    spread = factor.reshape(group, 1, shape[1], *([1] * (len(shape) - 2)))
    return derived_constant([weights], shape, lambda old: _product(old.reshape(grouped), spread).reshape(shape))


def _product(weights: Array, factor: Array) -> Array:
    """The product in double precision, rounded once, without an array of doubles."""
    return np.multiply(weights, factor, out=np.empty_like(weights), dtype=np.float64, casting="unsafe")


def _constant(value: Output) -> Constant | None:
    return value.node if isinstance(value.node, Constant) else None
