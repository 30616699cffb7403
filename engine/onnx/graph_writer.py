"""Converts the IR to graph protos: captures become implicit, names unique, annotations metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from engine.errors import ModelError, ModelWriteError
from engine.ir import (
    UNKNOWN,
    Constant,
    MapType,
    Model,
    Node,
    OptionalType,
    Parameter,
    Result,
    SequenceType,
    SparseTensorType,
    TensorType,
    ValueType,
    undefined,
)
from engine.onnx.annotations import SINK, annotate, annotate_exactly
from engine.onnx.downgrade import attributes_at
from engine.onnx.naming import Scope, UniqueNames
from engine.ops import CANONICAL_VERSIONS, find_op
from engine.ops.protos import attribute_to_proto, type_to_proto
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

TensorWriter = Callable[[Constant, str, bool], "onnx.TensorProto | None"]
"""Writes a constant under a name; the flag tells whether it is in the main graph. None if it is added later."""


@dataclass(frozen=True, slots=True)
class ExportContext:
    """The context shared by all graphs of one model.

    Attributes:
        opsets: versions by domain.
        write_tensor: writes constants.
        exact: write for `join_model` rather than for other readers: all types, names and JSON-like rt_info unchanged.
    """

    opsets: Mapping[str, int]
    write_tensor: TensorWriter
    exact: bool = False


class GraphWriter:
    """Writes the graph of one scope."""

    __slots__ = ("_context", "_graph", "_node_names", "_scope", "_sinks")

    def __init__(self, context: ExportContext, scope: Scope) -> None:
        self._context = context
        self._scope = scope
        self._graph = onnx.GraphProto(name=scope.model.name)
        self._node_names = UniqueNames()
        self._sinks = frozenset(scope.model.sinks)

    def write(self) -> onnx.GraphProto:
        """Return the graph as ONNX stores it. Raises `ModelWriteError` if it cannot be expressed."""
        scope, graph = self._scope, self._graph
        model = scope.model
        for parameter in model.parameters:
            graph.input.append(self._value(scope.names[parameter.output(0)], parameter.type, parameter))
        for constant in scope.overridable:
            self._add_constant(constant)
        outputs = {name: result.type for result, name in zip(model.results, scope.results, strict=True)}
        for node in model.ordered_nodes():
            if isinstance(node, Constant):
                if node not in scope.shared:
                    self._add_constant(node)
            elif not isinstance(node, (Parameter, Result)):
                self._add_node(node, outputs)
        for identity in scope.identities.values():
            self._add_node(identity, outputs)
        for result, name in zip(model.results, scope.results, strict=True):
            graph.output.append(self._value(name, result.type, result))
        return graph

    def _value(self, name: str, value_type: ValueType, node: Node | None = None) -> onnx.ValueInfoProto:
        info = onnx.ValueInfoProto(name=name)
        try:
            if self._context.exact:
                info.type.CopyFrom(_exact_type(value_type))
            elif is_stated(value_type):
                info.type.CopyFrom(type_to_proto(value_type))
        except ValueError as e:  # a length that exceeds 64 bits
            raise ModelWriteError(f"value `{name}` of type {value_type} cannot be written: {e}") from e
        if node is not None:
            self._annotate(info, node, name)
        return info

    def _add_constant(self, node: Constant) -> None:
        name = self._scope.names[node.output(0)]
        tensor = self._context.write_tensor(node, name, not self._scope.is_body)
        if tensor is not None:
            self._annotate(tensor, node, name)
            self._graph.initializer.append(tensor)
        if not (self._context.exact or self._scope.is_body) and node.rt_info.get("overridable"):
            self._graph.input.append(self._value(name, node.input_type))

    def _add_node(self, node: Node, outputs: Mapping[str, ValueType]) -> None:
        names = self._scope.names
        name = self._node_names.take(node.friendly_name)  # onnxruntime rejects duplicates
        proto = self._graph.node.add(op_type=node.op_type, domain=node.domain, name=name)
        formal = node.input_values[: node.num_formal_inputs]
        proto.input.extend("" if source is None else names[source] for source in formal)
        proto.output.extend(names[output] for output in node.outputs)
        known = find_op(node.op_type, node.domain)
        try:
            for key, value in self._attributes(node).items():
                definition = known.attributes.get(key) if known is not None else None
                kind = None if definition is None else definition.kind
                proto.attribute.append(attribute_to_proto(key, value, kind, self._body))
        except ModelError as e:
            raise ModelWriteError(f"{node} cannot be written: {e}") from e
        except DecodeError as e:  # protobuf copies a message by serializing and parsing it
            raise ModelWriteError(f"{node} cannot be written: bodies are nested too deep for protobuf: {e}") from e
        self._annotate(proto, node, name)
        if node.num_outputs and node in self._sinks:
            proto.metadata_props.add(key=SINK, value="kept for its effect")
        for output in node.outputs:
            name, value_type = names[output], output.type
            stated = value_type != UNKNOWN if self._context.exact else is_stated(value_type)
            # A result may state more of its value than is proven.
            is_known = name in outputs and (not self._context.exact or outputs[name] == value_type)
            if name and stated and not is_known:
                self._graph.value_info.append(self._value(name, value_type))

    def _attributes(self, node: Node) -> dict[str, Any]:
        opset = self._context.opsets.get(node.domain)
        if self._context.exact or opset is None or node.domain not in CANONICAL_VERSIONS:
            return node.attributes
        return attributes_at(node, opset)

    def _body(self, body: Model) -> onnx.GraphProto:
        scope = self._scope.bodies.get(id(body))
        if scope is None:  # a body in a list of bodies, which have no captures
            scope = Scope(body, strict=not self._context.exact, outer=self._scope)
        return GraphWriter(self._context, scope).write()

    def _annotate(self, proto: Any, node: Node, name: str) -> None:
        if self._context.exact:
            annotate_exactly(proto, node, name)
        else:
            annotate(proto, node)


def is_stated(value_type: ValueType | None) -> bool:
    """Whether ONNX can state the type in a valid model."""
    if isinstance(value_type, (TensorType, SparseTensorType)):
        return value_type.element_type is not undefined
    if isinstance(value_type, (SequenceType, OptionalType)):
        return is_stated(value_type.element)
    return isinstance(value_type, MapType) and is_stated(value_type.value)


def _exact_type(value_type: ValueType) -> onnx.TypeProto:
    """The type with everything that the IR knows, including bounds without a symbol."""
    proto = type_to_proto(value_type)
    inner: ValueType | None = value_type
    place = proto
    while isinstance(inner, (SequenceType, OptionalType)):
        place = place.sequence_type.elem_type if isinstance(inner, SequenceType) else place.optional_type.elem_type
        inner = inner.element
    if isinstance(inner, TensorType) and inner.shape.rank.is_static:
        for dim, target in zip(inner.shape.dims, place.tensor_type.shape.dim, strict=True):
            if dim.is_dynamic and (dim.min or dim.max is not None):
                target.dim_param = str(dim) if dim.symbol else f":{dim}"
    return proto
