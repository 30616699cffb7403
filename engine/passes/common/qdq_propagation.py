"""`QdqPropagation`: quantization and dequantization move past operators that only move elements."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops import get_op
from engine.ops.quantize import QuantizeSpec
from engine.ops.reference import evaluate
from engine.ops.resize import ResizeSpec
from engine.ops.traits import Moves, imported_operators_with, traits_of
from engine.ops.transpose import TransposeSpec
from engine.passes.folding import constant_fold
from engine.passes.fusion import constant_data, derived_constant, fits, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_output_update_name

_ONLY_MOVING: Final = imported_operators_with(
    lambda traits: traits.moves is not None and not traits.fills and traits.data == 1
)
MOVERS: Final = tuple(name for name in _ONLY_MOVING if name != "Split")
"""Operators whose output consists only of elements of their first input."""
_GROWING = imported_operators_with(lambda traits: traits.moves is Moves.REPETITION)
_BITS = 8


class DequantizeSinking(MatcherPass):
    """Turns Reshape(DequantizeLinear(x)) into DequantizeLinear(Reshape(x)), and the same for every operator of
    `MOVERS`.

    The operator then works on integers, and the dequantization moves next to its computing consumer, or to the
    QuantizeLinear that cancels it. Scale and zero point must be per tensor. It also moves

    - past Split, and past Concat if all inputs have equal scales and zero points;
    - past Resize to the nearest element, and past MaxPool: a positive scale preserves the order;
    - past Relu and Clip before a product, if the bounds are values of codes, or no code is beyond them.

    A Transpose of dequantized constants becomes the DequantizeLinear of transposed constants, whatever their scales.
    """

    makes = frozenset({"Clip"})

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type([*MOVERS, "MaxPool", "Resize", *_SINKS])
        self.register_matcher(Matcher(root, "DequantizeSinking"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        source = operation(node.input_value(0), "DequantizeLinear")
        if source is None or self.transformation_callback(node):
            return False
        if node.op_type == "Transpose" and _are_constants(source):
            turned = _transposed(source, TransposeSpec.of(node).order(len(source.output(0).shape)))
            return turned is not None and replace_by(node, [source, node], [turned])
        if not is_per_tensor(source):
            return False
        value = source.input_value(0)
        taker = "Clip" if node.op_type == "Relu" else node.op_type
        if value.element_type not in get_op(taker).inputs[0].elements:
            return False  # few operators take 4-bit integers
        if node.op_type == "MaxPool" and (node.num_outputs > 1 or not _has_positive_scale(source)):
            return False
        if node.op_type == "Resize" and not _copies(node):
            return False
        if node.op_type in _SINKS:
            return _SINKS[node.op_type](node, source)
        moved = ops.create(node.op_type, [value, *node.input_values[1:]], node.attributes)
        folded = constant_fold(moved)  # weights, which are rearranged at compile time
        integers = moved.output(0) if folded is None else folded[0]
        dequantized = ops.create("DequantizeLinear", [integers, *source.input_values[1:]], source.attributes)
        return replace_by(node, [source, node], [integers.node, dequantized])


def _sink_past_split(node: Node, source: Node) -> bool:
    inputs, count = [source.input_value(0), *node.input_values[1:]], node.num_outputs
    moved = ops.create("Split", inputs, node.attributes, num_outputs=count)
    made = [ops.create("DequantizeLinear", [v, *source.input_values[1:]], source.attributes) for v in moved.outputs]
    if not all(fits(old, new.output(0)) for old, new in zip(node.outputs, made, strict=True)):
        return False
    copy_runtime_info([source, node], [moved, *made])
    for old, new in zip(node.outputs, made, strict=True):
        new.output(0).name = old.name
        old.replace(new)
    return True


def _sink_past_concat(node: Node, source: Node) -> bool:
    sources = [operation(value, "DequantizeLinear") for value in node.input_values]
    equal = [s for s in sources if s is not None and is_per_tensor(s) and have_equal_parameters(source, s)]
    codes = [each.input_value(0) for each in equal]
    if len(codes) != node.num_inputs or any(each.element_type is not codes[0].element_type for each in codes):
        return False
    joined = ops.create("Concat", codes, node.attributes)
    dequantized = ops.create("DequantizeLinear", [joined, *source.input_values[1:]], source.attributes)
    return replace_by(node, [*equal, node], [joined, dequantized])


def _sink_past_clip(node: Node, source: Node) -> bool:
    """Only before a product: elsewhere, a clip in f32 joins other arithmetic."""
    if not any(traits_of(target.node).product and not target.index for target in node.output(0).target_inputs):
        return False
    bounds = _code_bounds(node, source)
    if bounds is None:
        return False
    clipped = ops.Clip(source.input_value(0), *bounds)
    dequantized = ops.create("DequantizeLinear", [clipped, *source.input_values[1:]], source.attributes)
    return replace_by(node, [source, node], [clipped, dequantized])


def _code_bounds(node: Node, source: Node) -> list[Constant] | None:
    """The codes of the bounds of a Relu or Clip of dequantized values; None if a bound is between two of these."""
    kind = source.input_value(0).element_type
    given = [None if value is None else constant_data(value) for value in node.input_values[1:]]
    parameters = [constant_data(value) for value in source.input_values[1:] if value is not None]
    if kind.bits != _BITS or not kind.is_integral or not _has_positive_scale(source):
        return None
    if any(item is None for item in parameters) or any(
        item is None and value is not None for item, value in zip(given, node.input_values[1:], strict=True)
    ):
        return None
    limits = np.iinfo(kind.numpy)
    codes = np.arange(limits.min, limits.max + 1).astype(kind.numpy)
    with np.errstate(all="ignore"):
        values = np.asarray(evaluate(source, [codes, *parameters])[0])
        clipped = np.asarray(evaluate(node, [values, *given])[0])
    places = np.searchsorted(values, clipped)
    if not (np.diff(values) > 0).all() or not np.isfinite(values).all() or places.max() >= len(codes):
        return None
    if (values[places] != clipped).any():
        return None
    return [Constant(codes[places[index]]) for index in (0, -1)]


_SINKS: Final = {
    "Split": _sink_past_split, "Concat": _sink_past_concat, "Relu": _sink_past_clip, "Clip": _sink_past_clip,
}  # fmt: skip


class QuantizeHoisting(MatcherPass):
    """Turns QuantizeLinear(Reshape(x)) into Reshape(QuantizeLinear(x)), and the same for every operator of `MOVERS`.

    Only if nothing else reads the operator's result, and the result has no more elements than the input. It also moves
    past a Concat with a dequantized input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("QuantizeLinear"), "QuantizeHoisting"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if operation(node.input_value(0), "Concat"):
            return not self.transformation_callback(node) and _hoist_past_concat(node)
        mover = operation(node.input_value(0), *[kind for kind in MOVERS if kind not in _GROWING])
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


def _copies(node: Node) -> bool:
    """Whether the result of a Resize consists only of elements of its input."""
    spec = ResizeSpec.of(node)
    return spec.mode == "nearest" and spec.coordinate_transformation_mode != "tf_crop_and_resize"


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


def _are_constants(node: Node) -> bool:
    return all(value is None or isinstance(value.node, Constant) for value in node.input_values)


def _transposed(dequantize: Node, perm: tuple[int, ...]) -> Node | None:
    """The dequantization of transposed constants: blocked scales and their zero points are transposed alike."""
    spec = QuantizeSpec.of(dequantize)
    attributes = dict(dequantize.attributes)
    if not is_per_tensor(dequantize):
        if not 0 <= spec.axis < len(perm):
            return None
        attributes["axis"] = perm.index(spec.axis)

    def turned(value: Output) -> Output:
        constant = value.node
        assert isinstance(constant, Constant)
        shape = [constant.shape[axis] for axis in perm]
        return derived_constant([constant], shape, lambda data: np.asarray(data.transpose(perm), order="C")).output(0)

    given = [value for value in dequantize.input_values if value is not None]
    moved = [turned(value) if index == 0 or spec.block_size else value for index, value in enumerate(given)]
    return ops.create("DequantizeLinear", moved, attributes)


def is_per_tensor(node: Node) -> bool:
    """True for a QuantizeLinear or DequantizeLinear with a single scale and zero point."""
    return not QuantizeSpec.of(node).block_size and all(
        value is None or value.shape.rank == 0 for value in node.input_values[1:3]
    )


def _has_positive_scale(dequantize: Node) -> bool:
    """True for positive scales with which no code becomes infinite."""
    scale, result = constant_data(dequantize.input_value(1)), dequantize.output(0).element_type
    if scale is None or not result.is_real:
        return False
    limits = result.finfo
    largest = float(limits.max) / 2 ** dequantize.input_value(0).element_type.bits
    numbers = scale.astype(np.float64)
    return bool(((numbers > 0) & (numbers <= largest)).all())


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
