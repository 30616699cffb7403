"""The lowest opset at which a canonical node can be exported without rewriting it.

A node can be written at an older version if the transition from there is `COMPATIBLE`, the older schema has its
attributes, types and counts, and the node uses nothing that only the newer version allows. Transitions in `UPGRADES`
are never reversed. Behaviour that the older specification leaves undefined does not prevent it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelWriteError
from engine.ir import (
    Constant,
    MapType,
    Model,
    Node,
    SequenceType,
    SparseTensorType,
    TensorType,
    ValueType,
    undefined,
)
from engine.onnx.opsets import canonical_version
from engine.onnx.upgrades.compatible import COMPATIBLE
from engine.ops.registry import CANONICAL_VERSIONS, KEPT_DEPRECATED
from engine.startup.onnx_library import default_value, onnx

_Schema = onnx.defs.OpSchema
_Option = onnx.defs.OpSchema.FormalParameterOption
_Types = tuple[str | None, ...]
_BORDER: Final = frozenset({"Constant", "Parameter", "Result"})
# Runtimes do not read older models: their broadcasting and training modes were different.
_OLDEST: Final = {"": 7}


def lowest_opsets(model: Model) -> dict[str, int]:
    """The lowest opset of each known domain at which all nodes of `model` and its bodies can be written.

    For ONNX's own domain it is at least 7, the oldest that runtimes support. Parameters, constants and results have no
    requirement, and other domains are not listed. Raises `ModelWriteError` if two nodes have no opset in common.
    """
    floors: dict[str, tuple[int, Node]] = {}
    ceilings: dict[str, tuple[int, Node]] = {}
    for node in _all_nodes(model):
        low, high = opset_range(node)
        if node.domain not in floors or low > floors[node.domain][0]:
            floors[node.domain] = low, node
        if node.domain not in ceilings or high < ceilings[node.domain][0]:
            ceilings[node.domain] = high, node
    for domain, (low, node) in floors.items():
        high, other = ceilings[domain]
        if low > high:
            raise ModelWriteError(
                f"{node} needs opset {low} or later of domain {domain!r} and {other} opset {high} or earlier, so one "
                "model cannot hold both; replace one of them"
            )
    return {domain: max(low, _OLDEST.get(domain, 1)) for domain, (low, _) in floors.items()}


def opset_range(node: Node) -> tuple[int, int]:
    """The lowest and the highest opset of the node's domain at which it can be written without rewriting it.

    At the lowest one it is written with `attributes_at`. The domain must be known. Amortized about 2 us.
    """
    formal = node.num_formal_inputs
    inputs = [value and type_text(value.type) for value in node.input_values[:formal]]
    while inputs and inputs[-1] is None:
        inputs.pop()
    low = _schema_floor(
        node.op_type,
        node.domain,
        tuple(["" if text is None else text for text in inputs]),
        tuple([type_text(output.type) for output in node.outputs]),
        frozenset(_stated(node)),
    )
    for version, uses_it in NEWLY_ALLOWED.get((node.domain, node.op_type), ()):
        if version > low and uses_it(node):
            low = version
    high = CANONICAL_VERSIONS[node.domain]
    if (node.domain, node.op_type) in KEPT_DEPRECATED:
        high = canonical_version(node.op_type, node.domain) - 1
    return low, high


def expressible(node: Node, opset: int) -> bool:
    """Whether `node` can be written at `opset` of its domain, with the attributes of `attributes_at`."""
    low, high = opset_range(node)
    return low <= opset <= high


def attributes_at(node: Node, opset: int) -> dict[str, Any]:
    """The node's attributes without those that `opset` lacks; these have default values if it is expressible."""
    known = onnx.defs.get_schema(node.op_type, opset, node.domain).attributes
    return {name: value for name, value in node.attributes.items() if name in known}


def type_text(value_type: ValueType) -> str | None:
    """The type as ONNX schemas write it, `tensor(float)`; None if it is not known."""
    if isinstance(value_type, (TensorType, SparseTensorType)):
        if value_type.element_type is undefined:
            return None
        kind = "tensor" if isinstance(value_type, TensorType) else "sparse_tensor"
        return f"{kind}({_element_text(value_type.element_type.onnx)})"
    element = value_type.value if isinstance(value_type, MapType) else value_type.element
    inner = None if element is None else type_text(element)
    if inner is None:
        return None
    if isinstance(value_type, MapType):
        return f"map({_element_text(value_type.key.onnx)},{inner})"
    return f"{'seq' if isinstance(value_type, SequenceType) else 'optional'}({inner})"


@functools.cache
def _element_text(onnx_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(onnx_type)).lower()


def _all_nodes(model: Model) -> Iterator[Node]:
    """The operator nodes of known domains, including those in bodies."""
    pending = [model]
    while pending:
        for node in pending.pop().ordered_nodes():
            if node.op_type not in _BORDER and node.domain in CANONICAL_VERSIONS:
                yield node
            pending.extend(node.bodies.values())


def _stated(node: Node) -> Iterator[str]:
    """The names of the attributes that differ from the canonical default."""
    defaults = _defaults(node.op_type, node.domain)
    for name, value in node.attributes.items():
        if name not in defaults or not _equal(defaults[name], value):
            yield name


def _equal(default: Any, value: Any) -> bool:
    if isinstance(default, float) and isinstance(value, (int, float)):
        return bool(np.float32(default) == np.float32(value))
    if isinstance(default, list):
        return isinstance(value, (list, tuple)) and default == list(value)
    return type(default) is type(value) and default == value


@functools.cache
def _defaults(op_type: str, domain: str) -> dict[str, Any]:
    schema = onnx.defs.get_schema(op_type, canonical_version(op_type, domain), domain)
    values = {
        name: onnx.helper.get_attribute_value(default_value(attribute))
        for name, attribute in schema.attributes.items()
        if default_value(attribute).type
    }
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@functools.lru_cache(maxsize=65536)
def _schema_floor(op_type: str, domain: str, inputs: _Types, outputs: _Types, stated: frozenset[str]) -> int:
    """The lowest version that is reached over compatible transitions and whose schema fits."""
    version = canonical_version(op_type, domain)
    compatible = COMPATIBLE.get(domain, {}).get(op_type, ())
    while version in compatible:
        older: _Schema = onnx.defs.get_schema(op_type, version - 1, domain)
        if not _fits(older, inputs, outputs, stated):
            break
        version = older.since_version
    return version


def _fits(schema: _Schema, inputs: _Types, outputs: _Types, stated: frozenset[str]) -> bool:
    """Whether the schema has these attributes, counts and types; an omitted input is an empty string."""
    attributes = schema.attributes
    if not stated <= attributes.keys():
        return False
    if any(attribute.required and name not in stated for name, attribute in attributes.items()):
        return False
    if not schema.min_input <= len(inputs) <= schema.max_input:
        return False
    if not schema.min_output <= len(outputs) <= schema.max_output:
        return False
    bound: dict[str, str] = {}
    return _types_fit(schema.inputs, inputs, bound) and _types_fit(schema.outputs, outputs, bound)


def _types_fit(formals: Sequence[Any], types: _Types, bound: dict[str, str]) -> bool:
    """Whether each type is allowed, and equal for all ports of a type variable; `bound` maps variables to types."""
    for index, text in enumerate(types):
        formal = formals[min(index, len(formals) - 1)]
        if text == "":
            if formal.option != _Option.Optional:
                return False
            continue
        if text is None or text not in formal.types:
            return False
        single = formal.option != _Option.Variadic or formal.is_homogeneous
        if single and bound.setdefault(formal.type_str, text) != text:
            return False
    return True


# -- features of newer versions that their schemas do not show --------------------------------------------


def _is_negative(attribute: str, default: int = 0) -> Callable[[Node], bool]:
    """Whether an axis is negative and not the default."""

    def uses_it(node: Node) -> bool:
        value = node.attributes.get(attribute, default)
        return bool(value < 0 and value != default)

    return uses_it


def _may_be_negative(index: int) -> Callable[[Node], bool]:
    """Whether an input is given and may have negative elements: it is not a constant without any."""

    def uses_it(node: Node) -> bool:
        if not node.has_input(index):
            return False
        source = node.input_value(index).node
        return not isinstance(source, Constant) or bool((source.data < 0).any())

    return uses_it


def _is_in(attribute: str, *values: str) -> Callable[[Node], bool]:
    return lambda node: node.attributes.get(attribute) in values


def _broadcasts(node: Node) -> bool:
    shapes = [value.shape for value in node.input_values if value is not None]
    return not all(shape.is_static and shape == shapes[0] for shape in shapes)


def _has_negative_axes(node: Node) -> bool:
    axes = [*node.attributes.get("scan_input_axes", ()), *node.attributes.get("scan_output_axes", ())]
    return any(axis < 0 for axis in axes)


def _is_per_axis(node: Node) -> bool:
    return node.input_value(1).shape.rank != 0


def _is_floored_float(node: Node) -> bool:
    return node.input_value(0).element_type.is_real and not node.attributes.get("fmod", 0)


def _always(node: Node) -> bool:
    return True


_same_padding = _is_in("auto_pad", "SAME_UPPER", "SAME_LOWER")
_negative_axis = ((11, _is_negative("axis")),)
_broadcast = ((8, _broadcasts),)
_scalar_scale = ((13, _is_per_axis),)
_ceiling = ((22, lambda node: bool(node.attributes.get("ceil_mode"))),)  # before, windows in the padding alone counted
_min_max = ((18, _is_in("reduction", "min", "max")),)

NEWLY_ALLOWED: Final[dict[tuple[str, str], tuple[tuple[int, Callable[[Node], bool]], ...]]] = {
    ("", "ArgMax"): _negative_axis,
    ("", "ArgMin"): _negative_axis,
    ("", "Attention"): ((24, lambda node: node.has_input(3)),),  # a mask may be shorter than the keys
    ("", "AveragePool"): _ceiling,
    ("", "Compress"): _negative_axis,
    ("", "Concat"): _negative_axis,
    ("", "Conv"): ((11, _same_padding),),
    ("", "ConvTranspose"): ((11, lambda node: _same_padding(node) or "output_shape" in node.attributes),),
    ("", "DequantizeLinear"): _scalar_scale,
    ("", "Flatten"): _negative_axis,
    ("", "Gather"): ((11, _may_be_negative(1)),),
    ("", "If"): ((11, _always),),  # branches may differ in shape
    ("", "LpPool"): ((11, _same_padding), *_ceiling),
    ("", "Max"): _broadcast,
    ("", "MaxPool"): _ceiling,
    ("", "Mean"): _broadcast,
    ("", "Min"): _broadcast,
    ("", "Mod"): ((28, _is_floored_float),),
    ("", "OneHot"): ((11, lambda node: _is_negative("axis", -1)(node) or _may_be_negative(0)(node)),),
    ("", "Pad"): ((19, _is_in("mode", "wrap")),),
    ("", "QuantizeLinear"): _scalar_scale,
    ("", "Resize"): ((19, _is_in("coordinate_transformation_mode", "half_pixel_symmetric")),),
    ("", "Scan"): ((11, _has_negative_axes),),
    ("", "ScatterElements"): _min_max,
    ("", "ScatterND"): _min_max,
    ("", "Slice"): ((11, _may_be_negative(3)),),
    ("", "Sum"): _broadcast,
    ("", "TopK"): ((11, _is_negative("axis", -1)),),
    ("ai.onnx.ml", "LabelEncoder"): ((4, lambda node: "keys_floats" in node.attributes),),
}
"""Versions of an operator that newly allow something their schema does not show, and whether a node uses it."""
