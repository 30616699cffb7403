"""Creates nodes: `create` for any operator, and the constructors behind `ops.Relu(x)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from engine.errors import GraphError, ModelError
from engine.ir import ElementType, Model, Node, OutputLike
from engine.ir.single_floats import as_float, shown_attribute
from engine.ops.protos import SparseTensor, attribute_kind
from engine.ops.registry import AttributeDef, OpDef, get_op
from engine.startup.onnx_library import onnx

_A: Final = onnx.AttributeProto


def create(
    op_type: str,
    inputs: Iterable[OutputLike | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    num_outputs: int | None = None,
    friendly_name: str | None = None,
) -> Node:
    """A node of an operator of the canonical opset, with its types inferred.

    Args:
        op_type: the operator's name.
        inputs: producers in the schema's order; None if an optional input is omitted. For a node with bodies,
            the captured values follow (see `engine.ir.Model.captures`).
        attributes: values by name; None is "not given". An `ElementType` is accepted for ONNX's number of a type.
        domain: the operator's domain, "" for ONNX's own.
        num_outputs: the number of outputs; by default those that the operator requires, or, for a variadic
            operator, the number that follows from inputs and attributes.
        friendly_name: the name for messages and profiles; by default generated from type and number.

    Raises:
        UnknownOperatorError: the operator is not known; the message lists similar names.
        ModelError: an attribute is unknown, missing or of a wrong type, or the number of inputs or outputs is wrong.
        TypeInferenceError: the operator does not accept these inputs.
    """
    if op_type == "Constant" and not domain:
        raise ModelError("create does not make constants; use ops.Constant(value)")
    if domain == "ai.onnx":
        domain = ""
    return _build(get_op(op_type, domain), tuple(inputs), attributes, num_outputs, friendly_name)


def make_constructor(op: OpDef) -> Callable[..., Node]:
    """The function behind `ops.<op>`: inputs positionally, attributes by keyword."""
    counts_by_attribute = "num_outputs" in op.attributes
    is_plain, count, op_name, domain = op.is_plain, op.min_inputs, op.name, op.domain

    def constructor(
        *inputs: OutputLike | None, friendly_name: str | None = None, num_outputs: int | None = None, **attributes: Any
    ) -> Node:
        if is_plain and not attributes and num_outputs is None and len(inputs) == count:
            for source in inputs:
                if source is None:
                    break
            else:
                try:  # the most frequent calls by passes
                    if not domain and friendly_name is None:
                        return Node(op_name, inputs)  # keywords would cost as much as the type inference
                    return Node(op_name, inputs, domain=domain, friendly_name=friendly_name)
                except GraphError as e:
                    _explain(op, inputs, e)
        if counts_by_attribute and num_outputs is not None and len(inputs) < 2:
            attributes["num_outputs"] = num_outputs
        return _build(op, inputs, attributes, num_outputs, friendly_name)

    constructor.__name__ = constructor.__qualname__ = op.name
    constructor.__doc__ = _document(op)
    constructor.__signature__ = _signature(op)  # type: ignore[attr-defined]
    return constructor


def _build(
    op: OpDef,
    inputs: tuple[OutputLike | None, ...],
    attributes: Mapping[str, Any] | None,
    num_outputs: int | None,
    friendly_name: str | None,
) -> Node:
    while inputs and inputs[-1] is None and not _is_counted(op, len(inputs)):
        inputs = inputs[:-1]
    checked = _check_attributes(op, attributes or {}) if attributes or op.required else {}
    count = len(inputs)
    if count < op.min_inputs or count > op.max_inputs:
        _check_count(op, count, checked)
    for index, source in enumerate(inputs):
        if source is None and not op.input_port(index).is_optional:
            raise ModelError(f"{op}: input {index} ({op.input_name(index)}) is required, but is None")
    if num_outputs is None:
        num_outputs = _count_outputs(op, inputs, checked)
    elif not op.min_outputs <= num_outputs <= op.max_outputs:
        raise ModelError(f"{op} has {_range(op.min_outputs, op.max_outputs)} outputs, not {num_outputs}")
    return _connect(op, inputs, checked, num_outputs, friendly_name)


def _is_counted(op: OpDef, count: int) -> bool:
    """Whether the last of `count` inputs is given even if it is omitted: the condition of a Loop is."""
    return count <= op.min_inputs and op.input_port(count - 1).is_optional


def _connect(
    op: OpDef,
    inputs: tuple[OutputLike | None, ...],
    attributes: dict[str, Any],
    num_outputs: int,
    friendly_name: str | None,
) -> Node:
    try:
        return Node(op.name, inputs, attributes, domain=op.domain, num_outputs=num_outputs, friendly_name=friendly_name)
    except GraphError as e:
        _explain(op, inputs, e)


def _count_outputs(op: OpDef, inputs: Sequence[Any], attributes: dict[str, Any]) -> int:
    if op.max_outputs == 1 or op.count_outputs is None:
        return op.min_outputs
    return op.count_outputs(inputs, attributes)


def _check_count(op: OpDef, count: int, attributes: dict[str, Any]) -> None:
    captured = sum(len(value.captures) for value in attributes.values() if isinstance(value, Model))
    if op.min_inputs <= count - captured <= op.max_inputs:
        return
    names = ", ".join(
        f"*{port.name}" if port.is_variadic else f"{port.name}=None" if port.is_optional else port.name
        for port in op.inputs
    )
    also = f" and {captured} captured values" if captured else ""
    raise ModelError(f"{op} takes {_range(op.min_inputs, op.max_inputs)} inputs ({names}){also}, got {count}")


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high >= 2**31 - 1 else f"{low} to {high}"


def _explain(op: OpDef, inputs: Sequence[Any], error: GraphError) -> NoReturn:
    for index, source in enumerate(inputs):
        if isinstance(source, (np.ndarray, np.generic, int, float, str, list)):
            raise GraphError(
                f"{op}: input {index} ({op.input_name(index)}) is {type(source).__name__}, not a node or an output; "
                "wrap values in ops.Constant, which decides the element type"
            ) from error
    raise GraphError(f"{op}: {error}") from error


# -- attributes -------------------------------------------------------------------------------------------


def _check_attributes(op: OpDef, attributes: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in attributes.items():
        definition = op.attributes.get(name)
        if definition is None:
            raise ModelError(f"{op} has no attribute {name!r}; it has {', '.join(sorted(op.attributes)) or 'none'}")
        if value is not None:
            checked[name] = _check_attribute(op, definition, value)
    for name in op.required:
        if name not in checked:
            raise ModelError(f"{op}: required attribute {name!r} is missing")
    return checked


def _check_attribute(op: OpDef, definition: AttributeDef, value: Any) -> Any:
    kind = definition.kind
    if _PLAIN_TYPES.get(kind) is type(value):
        return value
    if kind == _A.INTS and type(value) is tuple and set(map(type, value)) == {int}:
        return value
    if kind == _A.INT and isinstance(value, ElementType):
        return value.onnx
    if kind in _ITEMS and isinstance(value, (tuple, list, np.ndarray)) and np.ndim(value) == 1:
        items = value.tolist() if isinstance(value, np.ndarray) else value
        of_item = AttributeDef(definition.name, _ITEMS[kind], definition.required, None)
        return tuple(_check_attribute(op, of_item, item) for item in items)
    given = attribute_kind(value)
    if given == _A.INT and kind in (_A.INT, _A.FLOAT):
        return int(value) if kind == _A.INT else as_float(definition.name, value)
    if given == kind:
        return float(value) if kind == _A.FLOAT else value
    if kind == _A.TENSOR and isinstance(value, np.generic):
        return np.asarray(value)
    raise ModelError(
        f"{op}: attribute {definition.name!r} is {_TEXTS.get(kind, 'of another type')}, "
        f"got {type(value).__name__} {value!r}"
    )


_PLAIN_TYPES: Final[dict[int, type]] = {_A.INT: int, _A.FLOAT: float, _A.STRING: str}
"""The usual types of values, which need no conversion."""
_ITEMS: Final[dict[int, int]] = {
    _A.INTS: _A.INT,
    _A.FLOATS: _A.FLOAT,
    _A.STRINGS: _A.STRING,
    _A.TENSORS: _A.TENSOR,
    _A.GRAPHS: _A.GRAPH,
    _A.TYPE_PROTOS: _A.TYPE_PROTO,
    _A.SPARSE_TENSORS: _A.SPARSE_TENSOR,
}
_TEXTS: Final[dict[int, str]] = {
    _A.INT: "an int",
    _A.FLOAT: "a float",
    _A.STRING: "a str",
    _A.TENSOR: "a numpy array",
    _A.GRAPH: "a Model",
    _A.TYPE_PROTO: "a value type",
    _A.SPARSE_TENSOR: f"a {SparseTensor.__name__}",
    _A.INTS: "a sequence of ints",
    _A.FLOATS: "a sequence of floats",
    _A.STRINGS: "a sequence of str",
}


# -- text of help() ---------------------------------------------------------------------------------------


def _signature(op: OpDef) -> inspect.Signature:
    kinds = inspect.Parameter
    parameters = [
        kinds(port.name, kinds.VAR_POSITIONAL)
        if port.is_variadic
        else kinds(port.name, kinds.POSITIONAL_ONLY, default=None if port.is_optional else kinds.empty)
        for port in op.inputs
    ]
    taken = {parameter.name for parameter in parameters}
    defaults: dict[str, Any] = {
        name: kinds.empty if a.required else shown_attribute(a.default) for name, a in op.attributes.items()
    }
    for name, default in {**defaults, "num_outputs": None, "friendly_name": None}.items():
        if name not in taken:
            parameters.append(kinds(name, kinds.KEYWORD_ONLY, default=default))
    try:
        return inspect.Signature(parameters, return_annotation=Node)
    except ValueError:  # an optional input before a required one (Loop)
        return inspect.signature(make_constructor)


def _document(op: OpDef) -> str:
    lines = [f"A node of ONNX's {op.name} (since opset {op.since_version}).", "", "Inputs:"]
    lines += [f"    {p.name}{' (optional)' if p.is_optional else ''}: {p.type_name}" for p in op.inputs] or ["    none"]
    if op.attributes:
        lines += ["", "Attributes:"]
        for name, a in sorted(op.attributes.items()):
            default = "required" if a.required else f"default {shown_attribute(a.default)!r}"
            lines.append(f"    {name}: {_TEXTS.get(a.kind, 'a value')}, {default}")
    lines += ["", (op.schema.doc or "").strip()]
    return "\n".join(lines)
