"""`QuantizedMapsFusion`: average pooling, sums and products of tensors between quantizations, on 8-bit integers."""

from __future__ import annotations

from typing import Final

from engine.ir import Constant, Node, Output, f32
from engine.ops.internal import BINARY_OPERATORS, Codes, QuantizedAveragePool, QuantizedBinary
from engine.ops.internal.quantized_maps import codes_of
from engine.ops.reduce import ReduceSpec
from engine.passes.common.quantized_operands import is_byte_quantization, zero_point_of
from engine.passes.fusion import constant_data, dims_of, operation, replace_by, same_length
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_POOLS: Final = ("AveragePool", "GlobalAveragePool", "ReduceMean")


class QuantizedMapsFusion(MatcherPass):
    """Makes `engine.QuantizedAveragePool` and `engine.QuantizedBinary` from the operators between quantizations.

    - DequantizeLinear of x, and AveragePool, or GlobalAveragePool or an equal ReduceMean of maps of known size; the
      result may stay f32.
    - DequantizeLinear of a and b, Add or Mul, and QuantizeLinear. Shapes must be equal, or b has one value for each
      channel, as in squeeze and excitation.

    Scales and zero points must be constants, one for each tensor. Results differ from those in f32 by at most one
    quantum. Needs device kernels, so disabled unless a `PassConfig` enables it. It runs after `QuantizedFusion`, which
    makes residual sums a part of convolutions.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type([*_POOLS, "QuantizeLinear"]), "QuantizedMapsFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        if node.op_type in _POOLS:
            return _pool(node)
        return is_byte_quantization(node) and (_quantize_pool(node) or _combine(node))


def _pool(node: Node) -> bool:
    x, dims = _codes(node.input_value(0)), dims_of(node.input_value(0))
    if x is None or dims is None or node.output(0).element_type is not f32:
        return False
    attributes = dict(node.attributes)
    if node.op_type != "AveragePool":
        if len(dims) < 3 or not all(length.is_static and length.get_length() > 0 for length in dims[2:]):
            return False
        if node.op_type == "ReduceMean" and not _reduces_maps(node, len(dims)):
            return False
        attributes = {"kernel_shape": [length.get_length() for length in dims[2:]]}
    return replace_by(node, [node], [QuantizedAveragePool(x, **attributes)])


def _reduces_maps(node: Node, rank: int) -> bool:
    """Whether a ReduceMean reduces all spatial axes, and keeps them."""
    spec, axes = ReduceSpec.of(node), constant_data(node.input_value(1) if node.has_input(1) else None)
    return spec.keepdims and axes is not None and spec.at(rank, axes) == tuple(range(2, rank))


def _quantize_pool(node: Node) -> bool:
    source = node.input_value(0)
    if source.node.op_type != "QuantizedAveragePool" or source.num_consumers != 1:
        return False
    x, y = codes_of(source.node)
    if y.scale is not None:
        return False
    made = QuantizedAveragePool(x, _result(node), **source.node.attributes)
    return replace_by(node, [source.node, node], [made])


def _combine(node: Node) -> bool:
    source = operation(node.input_value(0), *BINARY_OPERATORS)
    if source is None or source.output(0).num_consumers != 1:
        return False
    values = source.input_values
    for first, second in ((values[0], values[1]), (values[1], values[0])):
        assert first is not None
        assert second is not None
        a, b = _codes(first), _codes(second)
        if a is None or b is None or not _fits(first, second):
            continue
        made = QuantizedBinary(a, b, _result(node), operator=source.op_type)
        return replace_by(node, [source, node], [made])
    return False


def _codes(value: Output) -> Codes | None:
    """The operands of a DequantizeLinear of a computed tensor."""
    node = operation(value, "DequantizeLinear")
    if node is None or not is_byte_quantization(node) or isinstance(node.input_value(0).node, Constant):
        return None
    codes = node.input_value(0)
    return Codes(codes, node.input_value(1), zero_point_of(node, codes))


def _result(quantize: Node) -> Codes:
    return Codes(None, quantize.input_value(1), zero_point_of(quantize, quantize.output(0)))


def _fits(a: Output, b: Output) -> bool:
    """Whether b has the shape of a, or one value for each channel of a, [N, C, 1, ...]."""
    left, right = dims_of(a), dims_of(b)
    if left is None or right is None or len(left) != len(right):
        return False
    if all(map(same_length, left, right)):
        return True
    is_map = len(left) > 2 and all(map(same_length, left[:2], right[:2]))
    return is_map and all(length.is_static and length.get_length() == 1 for length in right[2:])
