"""`QdqPropagation`: quantization and dequantization move past operators that only move elements."""

from __future__ import annotations

from engine import ops
from engine.ir import Node, Output
from engine.ops import get_op
from engine.ops.quantize import QuantizeSpec
from engine.passes.folding import constant_fold
from engine.passes.fusion import constant_data, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.surgery import replace_output_update_name

MOVERS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Expand", "Identity")
"""Operators whose output consists only of elements of their first input."""
_BITS = 8


class DequantizeSinking(MatcherPass):
    """Turns Reshape(DequantizeLinear(x)) into DequantizeLinear(Reshape(x)), likewise for every operator of `MOVERS`.

    The operator then works on integers, and the dequantization moves next to its computing consumer, or to the
    QuantizeLinear that cancels it. Scale and zero point must be per tensor. It also moves past MaxPool: a positive
    scale preserves the order.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type([*MOVERS, "MaxPool"])
        self.register_matcher(Matcher(root, "DequantizeSinking"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        source = operation(node.input_value(0), "DequantizeLinear")
        if source is None or not is_per_tensor(source) or self.transformation_callback(node):
            return False
        value = source.input_value(0)
        if value.element_type not in get_op(node.op_type).inputs[0].elements:
            return False  # few operators take 4-bit integers
        if node.op_type == "MaxPool" and (node.num_outputs > 1 or not _has_positive_scale(source)):
            return False
        moved = ops.create(node.op_type, [value, *node.input_values[1:]], node.attributes)
        folded = constant_fold(moved)  # weights, which are rearranged at compile time
        integers = moved.output(0) if folded is None else folded[0]
        dequantized = ops.create("DequantizeLinear", [integers, *source.input_values[1:]], source.attributes)
        return replace_by(node, [source, node], [integers.node, dequantized])


class QuantizeHoisting(MatcherPass):
    """Turns QuantizeLinear(Reshape(x)) into Reshape(QuantizeLinear(x)), likewise for every operator of `MOVERS`.

    Only if nothing else reads the operator's result, and the result has no more elements than the input. It also moves
    past a Concat of which an input is dequantized.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("QuantizeLinear"), "QuantizeHoisting"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if operation(node.input_value(0), "Concat"):
            return not self.transformation_callback(node) and _hoist_past_concat(node)
        mover = operation(node.input_value(0), *[kind for kind in MOVERS if kind not in ("Expand", "Gather")])
        if mover is None or mover.output(0).num_consumers != 1 or not is_per_tensor(node):
            return False
        if operation(mover.input_value(0), "DequantizeLinear") or self.transformation_callback(node):
            return False  # DequantizeSinking handles this case
        if node.output(0).element_type not in get_op(mover.op_type).inputs[0].elements:
            return False
        if mover.op_type == "Slice" or constant_data(mover.input_value(0)) is not None:
            return False
        quantized = ops.create("QuantizeLinear", [mover.input_value(0), *node.input_values[1:]], node.attributes)
        moved = ops.create(mover.op_type, [quantized, *mover.input_values[1:]], mover.attributes)
        return replace_by(node, [mover, node], [quantized, moved])


def _hoist_past_concat(node: Node) -> bool:
    concat = node.input_value(0).node
    if concat.output(0).num_consumers != 1 or not is_per_tensor(node):
        return False
    sources = [value for value in concat.input_values if value is not None]
    if not any(operation(value, "DequantizeLinear") for value in sources):
        return False
    quantized = [ops.create("QuantizeLinear", [v, *node.input_values[1:]], node.attributes) for v in sources]
    joined = ops.create("Concat", quantized, concat.attributes)
    return replace_by(node, [concat, node], [*quantized, joined])


class QuantizePairElimination(MatcherPass):
    """Removes QuantizeLinear(DequantizeLinear(x)) with equal parameters, which returns x.

    Exact for integers of up to 8 bits: (x - zero) * scale / scale is off by less than half.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("QuantizeLinear"), "QuantizePairElimination"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        source = operation(node.input_value(0), "DequantizeLinear")
        if source is None or not have_equal_parameters(source, node) or self.transformation_callback(node):
            return False
        value = source.input_value(0)
        if value.element_type is not node.output(0).element_type or value.element_type.bits > _BITS:
            return False
        if not value.element_type.is_integral:
            return False
        if replace_output_update_name(node.output(0), value):
            return True
        return replace_by(node, [source, node], [ops.Identity(value)])


def is_per_tensor(node: Node) -> bool:
    """True for a QuantizeLinear or DequantizeLinear with a single scale and zero point."""
    return not QuantizeSpec.of(node).block_size and all(
        value is None or value.shape.rank == 0 for value in node.input_values[1:3]
    )


def _has_positive_scale(node: Node) -> bool:
    scale = constant_data(node.input_value(1))
    return scale is not None and bool((scale > 0).all())


def have_equal_parameters(dequantize: Node, quantize: Node) -> bool:
    """True if both have the same positive scale and the same zero point, along the same axis."""
    if not _has_positive_scale(dequantize):
        return False
    back, forth = QuantizeSpec.of(dequantize), QuantizeSpec.of(quantize)
    if (back.axis, back.block_size) != (forth.axis, forth.block_size) and not is_per_tensor(quantize):
        return False
    pairs = [(node.input_value(i) if node.has_input(i) else None) for i in (1, 2) for node in (dequantize, quantize)]
    return _equal(pairs[0], pairs[1]) and _equal(pairs[2], pairs[3])


def _equal(a: Output | None, b: Output | None) -> bool:
    """True for the same value, two equal constants, or an omitted zero point and one that is 0."""
    if a == b:
        return True
    x, y = constant_data(a), constant_data(b)
    if a is None or b is None:
        known = x if b is None else y
        return known is not None and not known.any()
    return x is not None and y is not None and x.dtype == y.dtype and x.shape == y.shape and bool((x == y).all())
