"""What OpenVINO takes and computes otherwise than ONNX says: it is refused, so that nothing is wrong without a word.

Found with OpenVINO 2026.4.1 on CPU, by the conformance kit. What depends on values that are known only during an
inference, such as NaN, cannot be refused; docs/runtimes.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from engine.ir import Constant, Node, Output, TensorType
from engine.ops import find_op
from engine.ops.traits import traits_of
from engine.passes.runtime_info import is_operation
from engine.plugin_api import RefusalCause, Support
from engine_openvino.runtime import Runtime

_Condition: TypeAlias = Callable[[Node], Any]

_LARGE: Final = frozenset({"i32", "u32", "i64", "u64"})
_WIDE: Final = frozenset({"u32", "i64", "u64"})
"""Integers that OpenVINO computes in 32 bits with a sign."""
_SIGNED: Final = frozenset({"i8", "i16", "i32", "i64"})
_SMALL: Final = frozenset({"i8", "u8"})
_SHORT: Final = frozenset({"i16", "u16"})
_BEYOND_32_BITS: Final = frozenset({
    "Add", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "CumProd", "CumSum", "Max", "Min", "Mul", "Sub",
})  # fmt: skip
"""Operators that OpenVINO computes in 32 bits."""
_THROUGH_F32: Final = frozenset({
    "Clip", "ConvInteger", "Div", "Einsum", "Gemm", "MatMul", "MatMulInteger", "Mod", "PRelu", "Pow", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "Relu", "Resize", "ReverseSequence",
})  # fmt: skip
"""Operators that OpenVINO computes in f32, whose integers end at 2^24."""
_SATURATING: Final = frozenset({"Abs", "Add", "BitShift", "Mul", "Neg", "Sub"})
_ADDRESSED: Final = frozenset({
    "ConstantOfShape", "Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Unsqueeze",
})  # fmt: skip
"""Operators whose integer parameters are lengths, axes or indices, which always fit."""
_WAY_OUT: Final = "run it on another device (HETERO:OPENVINO,CPU)"

_ALWAYS: Final[dict[str, tuple[_Condition, str]]] = {
    "Attention": (
        lambda n: (
            (n.attributes.get("is_causal") and n.has_input(4))
            or any(n.attributes.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right"))
        ),
        "masks a past as if there were none, and ignores windows",
    ),
    "AveragePool": (
        lambda n: n.attributes.get("ceil_mode") and n.attributes.get("count_include_pad"),
        "also counts what ceil_mode adds behind the padding",
    ),
    "BitShift": (lambda n: _is_of(n.output(0), _SIGNED), "shifts integers with a sign otherwise"),
    "Cast": (lambda n: _is_narrowing(n), "rounds to elements of few bits otherwise, and does not saturate"),
    "CastLike": (lambda n: _is_narrowing(n), "rounds to elements of few bits otherwise, and does not saturate"),
    "ConvTranspose": (lambda n: n.attributes.get("output_shape"), "places the result otherwise for some output_shape"),
    "DequantizeLinear": (lambda n: _is_of(n.input_value(0), _SHORT), "computes otherwise around integers of 16 bits"),
    "DFT": (lambda n: _constant(n, 2) != 1, "transforms axis 1, whatever the axis is"),
    "Div": (lambda n: _is_integer(n) and not _is_of(n.output(0), _LARGE), "rounds quotients of small integers"),
    "GRU": (lambda n: n.has_input(4) and n.has_input(5), "returns zeros for a sequence of length 0"),
    "Gather": (lambda n: any(map(_is_empty, [*n.input_values, *n.outputs])), "dies of tensors without elements"),
    "LRN": (lambda n: n.attributes.get("bias", 1.0) % 1, "drops the fraction of bias"),
    "LSTM": (
        lambda n: n.attributes.get("input_forget") or n.has_input(7) or (n.has_input(4) and n.has_input(5)),
        "ignores input_forget and peepholes, and returns zeros for a sequence of length 0",
    ),
    "LayerNormalization": (lambda n: not _scales_normalized(n), "aligns a scale that broadcasts with other axes"),
    "LpPool": (lambda n: n.attributes.get("ceil_mode"), "gives the last windows of ceil_mode other sums"),
    "MaxPool": (lambda n: n.attributes.get("storage_order") and n.num_outputs > 1, "ignores storage_order"),
    "QuantizeLinear": (lambda n: _is_of(n.output(0), _SHORT), "computes otherwise around integers of 16 bits"),
    "RNN": (lambda n: n.has_input(4) and n.has_input(5), "returns zeros for a sequence of length 0"),
    "Range": (lambda n: not _is_plain_range(n), "counts to a limit on the other side of start"),
    "ReduceMax": (lambda n: _is_empty(n.input_value(0)), "gives the greatest number of a type instead of an infinity"),
    "ReduceMin": (lambda n: _is_empty(n.input_value(0)), "gives the greatest number of a type instead of an infinity"),
    "ReduceLogSum": (lambda n: n.attributes.get("noop_with_empty_axes"), "takes no logarithm if there are no axes"),
    "Resize": (
        lambda n: (
            n.attributes.get("exclude_outside")
            or n.attributes.get("antialias")
            or n.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
            or (n.attributes.get("coordinate_transformation_mode") == "align_corners" and n.has_input(2))
        ),
        "ignores exclude_outside, antialias and keep_aspect_ratio_policy, and aligns corners by lengths, not scales",
    ),
    "RoiAlign": (lambda n: n.attributes.get("mode") == "max", "takes the maximum of other products"),
    "SpaceToDepth": (lambda n: n.attributes.get("mode", "DCR") != "DCR", "ignores the mode"),
    "Shrink": (lambda n: _is_integer(n), "rounds the bias of integers otherwise"),
    "Tile": (lambda n: not isinstance(n.input_value(1).node, Constant), "may not write the result of computed repeats"),
}  # fmt: skip
"""By operator, which nodes OpenVINO computes wrong, and what it does."""


def refusal(node: Node, runtime: Runtime, *, is_narrow: bool) -> Support | None:
    """Why a node is refused, or a node in its bodies, without asking OpenVINO; None if it may run."""
    for value in (*node.input_values, *node.outputs):
        if value is not None and not isinstance(value.type, TensorType):
            return Support.refused(RefusalCause.ELEMENT_TYPE, f"{value} is {value.type}; OpenVINO takes tensors only")
        if value is not None and runtime.type_of(value.element_type) is None:
            why = f"{value} is {value.element_type}, which OpenVINO {runtime.version} does not have or take"
            return Support.refused(RefusalCause.ELEMENT_TYPE, why)
    if find_op(node.op_type, node.domain) is None:
        return Support.refused(RefusalCause.OP, f"{node.domain}.{node.op_type} is no operator of ONNX")
    for body in node.bodies.values():
        for inner in filter(is_operation, body.ordered_nodes()):
            found = refusal(inner, runtime, is_narrow=is_narrow)
            if found is not None:
                return Support.refused(found.cause or RefusalCause.OP, f"in its body, {inner}: {found.reason}")
    condition, what = _ALWAYS.get(node.op_type, (_never, ""))
    if not node.domain and condition(node):
        return Support.refused(RefusalCause.ATTRIBUTE, f"OpenVINO {what}; {_WAY_OUT}")
    narrowed = None if is_narrow else _narrowed(node)
    if narrowed is None:
        return None
    why = f"{narrowed}; set ALLOW_NARROW_TYPES to accept that, or {_WAY_OUT}"
    return Support.refused(RefusalCause.ELEMENT_TYPE, why)


def _narrowed(node: Node) -> str | None:
    """How the node's results may differ because OpenVINO computes in other types; None if they do not."""
    data = [value for value in node.input_values[: traits_of(node).data] if value is not None]
    for value in (*data, *node.outputs):
        if value.element_type.name == "f64":
            return f"{value} is f64, which OpenVINO computes in f32"
        if isinstance(value.node, Constant) and _is_of(value, _WIDE) and not fits(value.node.data):
            return f"{value} has integers beyond 32 bits, which OpenVINO would clip"
    for value in node.outputs:
        kind, op_type = value.element_type, node.op_type
        if _is_of(value, _SMALL) and op_type in _SATURATING:
            return f"{op_type} of {kind}, which saturates in OpenVINO instead of wrapping around"
        if not _is_of(value, _LARGE) or _only_addresses(value):
            continue
        if op_type in _THROUGH_F32:
            return f"{op_type} of {kind}, which OpenVINO computes in f32"
        adds = op_type.startswith("Scatter") and node.attributes.get("reduction", "none") != "none"
        from_real = op_type in ("Cast", "CastLike") and data[0].element_type.is_real
        if _is_of(value, _WIDE) and (op_type in _BEYOND_32_BITS or adds or from_real):
            return f"{op_type} of {kind}, which OpenVINO computes in 32 bits"
    return None


def _only_addresses(value: Output) -> bool:
    """Whether a value is used for lengths, axes and indices only, perhaps after further computations."""
    readers = value.target_inputs
    return bool(readers) and all(
        (reader.node.op_type in _ADDRESSED and (reader.index > 0 or reader.node.op_type == "ConstantOfShape"))
        or (reader.node.num_outputs > 0 and all(_is_of(o, _LARGE) and _only_addresses(o) for o in reader.node.outputs))
        for reader in readers
    )


def fits(data: Any) -> bool:
    """Whether 32 bits with a sign have all integers of an array."""
    limits = np.iinfo(np.int32)
    return not data.size or bool(limits.min <= data.min() and data.max() <= limits.max)


def _never(node: Node) -> bool:
    return False


def _is_of(value: Output, names: frozenset[str]) -> bool:
    return isinstance(value.type, TensorType) and value.element_type.name in names


def _is_integer(node: Node) -> bool:
    return node.output(0).element_type.name[0] in "iu"


def _is_narrowing(node: Node) -> bool:
    """Whether real numbers become elements of 8 bits that saturate, or of fewer."""
    kind = node.output(0).element_type
    saturates = kind.name.startswith("f8") and node.attributes.get("saturate", 1) == 1
    return saturates or (kind.bits < 8 and node.input_value(0).element_type.is_real)


def _constant(node: Node, index: int) -> Any:
    """The value of an input with one element, if it is a constant; an axis from the end is counted from the front."""
    source = node.input_value(index).node if node.has_input(index) else None
    if not isinstance(source, Constant) or source.data.size != 1:
        return None
    value, rank = source.data.item(), node.input_value(0).shape.rank
    return value + rank.min if value < 0 and rank.is_static else value


def _is_empty(value: Output | None) -> bool:
    return value is not None and value.shape.rank.is_static and any(dim.max == 0 for dim in value.shape)


def _is_plain_range(node: Node) -> bool:
    """Whether the range is certain to count towards its limit: upwards from 0 or less, to a length."""
    start, delta = (node.input_value(index).node for index in (0, 2))
    return (
        isinstance(start, Constant) and isinstance(delta, Constant) and start.data.item() <= 0 and delta.data.item() > 0
    )


def _scales_normalized(node: Node) -> bool:
    """Whether the scale of a LayerNormalization has the lengths of the axes that are normalized."""
    shape, scale = node.input_value(0).shape, node.input_value(1).shape
    if shape.rank.is_dynamic or scale.rank.is_dynamic:
        return False
    lengths = [dim.min for dim in scale]
    while lengths and lengths[0] == 1 and len(lengths) > 1:
        lengths.pop(0)
    count = len(shape) - node.attributes.get("axis", -1) % len(shape)
    return len(lengths) <= count and (len(lengths) == 1 or lengths == [dim.min for dim in shape][-len(lengths) :])
