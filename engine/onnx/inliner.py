"""Calls of model-local functions as the functions' nodes, with names, attributes and metadata of the call."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from engine.errors import GraphError, ModelReadError
from engine.onnx.function_calls import Limits, check_attributes, check_function, check_signature, is_required
from engine.onnx.functions import (
    MAX_CALL_DEPTH,
    OPSET_TAG,
    FunctionKey,
    Functions,
    callee_of,
    describe,
    label_of,
    subgraphs_of,
    walk_graphs,
)
from engine.onnx.naming import UniqueNames
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_LONGEST_PREFIX: Final = 100  # characters; names of calls within calls do not grow further


@dataclass(frozen=True, slots=True)
class _Callee:
    """A function, and the properties that its calls need.

    Attributes:
        label: its name in messages.
        opsets: its versions by domain.
        produced: the values that its nodes compute, without those in bodies.
        defaults: the defaults of its attributes, where they have one.
        declared: its attributes.
    """

    function: onnx.FunctionProto
    label: str
    opsets: Mapping[str, int]
    produced: Mapping[str, None]
    defaults: Mapping[str, onnx.AttributeProto]
    declared: set[str]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The surroundings of nodes: the model's graph, or one call of a function.

    Attributes:
        names: the names in the result of values visible here; None in the model's graph, which keeps its names.
        given: the attributes that the call gives, in terms of the result.
        callee: the function; None in the model's graph.
        call: the call, for messages.
        prefix: the beginning of new names.
        metadata: the entries that nodes get unless they have the same keys.
    """

    names: ChainMap[str, str] | None = None
    given: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    callee: _Callee | None = None
    call: str = ""
    prefix: str = ""
    metadata: tuple[onnx.StringStringEntryProto, ...] = ()

    @property
    def label(self) -> str:
        return "" if self.callee is None else self.callee.label


class Inliner:
    """Inlines the calls in one model.

    Args:
        functions: the model's functions.
        opsets: the versions by domain with which each function was written.
        graph: the model's graph, whose names stay.
        limits: how much the result may have.
    """

    __slots__ = ("_callees", "_default_path", "_functions", "_limits", "_names", "_opsets", "_path", "_stated")

    def __init__(
        self,
        functions: Functions,
        opsets: Mapping[FunctionKey, Mapping[str, int]],
        graph: onnx.GraphProto,
        limits: Limits,
    ) -> None:
        self._functions = functions
        self._opsets = opsets
        self._limits = limits
        self._callees: dict[FunctionKey, _Callee] = {}
        self._default_path: list[tuple[str, str]] = []
        """The defaults of attributes whose bodies are expanded: function and attribute."""
        self._path: list[FunctionKey] = []
        self._stated: list[onnx.ValueInfoProto] = []  # types that functions state, of the graph that is being made
        self._names = UniqueNames()
        for part in walk_graphs(graph):
            for name in _defined(part):
                self._names.take(name)

    def run(self, graph: onnx.GraphProto) -> None:
        """Replace the calls in `graph` and its bodies. Raises `ModelReadError`, and `GraphError` for recursion."""
        self._replace_nodes(graph, _Frame())

    def _replace_nodes(self, graph: onnx.GraphProto, frame: _Frame) -> None:
        outer, self._stated = self._stated, []
        made = onnx.GraphProto()
        made.node.extend(self._expanded(graph.node, frame))
        graph.ClearField("node")
        graph.node.MergeFrom(made.node)
        graph.value_info.extend(self._stated)
        self._stated = outer

    def _expanded(self, nodes: Iterable[onnx.NodeProto], frame: _Frame) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            callee = callee_of(node, self._functions)
            if callee is not None:
                yield from self._inlined(node, callee, frame)
            else:
                yield self._copied(node, frame)

    def _copied(self, node: onnx.NodeProto, frame: _Frame) -> onnx.NodeProto:
        """A node that is not a call, in terms of the result."""
        if frame.names is None and not _has_bodies(node):
            return node
        attributes = self._attributes(node, frame)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.ClearField("attribute")
        copy.attribute.extend(attributes)
        if frame.names is not None:
            copy.input[:] = [self._name(name, node, frame) for name in node.input]
            copy.output[:] = [frame.names[name] if name else "" for name in node.output]
            copy.name = f"{frame.prefix}/{node.name}" if node.name else ""
            _extend_metadata(copy, frame.metadata)
        self._limits.count(copy)
        return copy

    # -- calls --------------------------------------------------------------------------------------------

    def _inlined(self, call: onnx.NodeProto, key: FunctionKey, frame: _Frame) -> Iterator[onnx.NodeProto]:
        """The nodes of a called function."""
        if key in self._path:
            cycle = " -> ".join(map(label_of, [*self._path[self._path.index(key) :], key]))
            raise GraphError(f"local functions call themselves: {cycle}")
        if len(self._path) >= MAX_CALL_DEPTH:
            raise ModelReadError(f"local functions call each other more than {MAX_CALL_DEPTH} deep")
        callee = self._callees.get(key) or self._prepare(key)
        function = callee.function
        check_signature(call, function, callee.label)
        inputs = [self._name(name, call, frame) for name in call.input]
        outputs = [name if frame.names is None or not name else frame.names[name] for name in call.output]
        given = {attribute.name: attribute for attribute in self._attributes(call, frame)}
        if not callee.declared.issuperset(given):
            check_attributes(call, function, given, callee.label)
        prefix = _joined(frame.prefix, call.name or call.op_type)
        names = dict.fromkeys(function.input, "") | dict(zip(function.input, inputs, strict=False))
        repeated = _name_outputs(function, names, callee.produced, outputs)
        made = {name: self._names.take(f"{prefix}/{name}") for name in callee.produced if name not in names}
        names |= made
        self._stated += [_renamed(value, made[value.name]) for value in function.value_info if value.name in made]
        metadata = _merged(call.metadata_props, frame.metadata)
        inner = _Frame(ChainMap(names), given, callee, describe(call), prefix, metadata)
        self._limits.count(call)
        self._path.append(key)
        yield from self._expanded(function.node, inner)
        self._path.pop()
        for formal, actual in repeated:
            yield self._identity(names, formal, actual, inner)

    def _prepare(self, key: FunctionKey) -> _Callee:
        function, label = self._functions[key], label_of(key)
        check_function(function, label)
        defaults = {default.name: default for default in function.attribute_proto}
        produced = dict.fromkeys(name for node in function.node for name in node.output if name)
        made = _Callee(function, label, self._opsets[key], produced, defaults, {*function.attribute, *defaults})
        self._callees[key] = made
        return made

    def _identity(self, names: Mapping[str, str], formal: str, actual: str, frame: _Frame) -> onnx.NodeProto:
        source = names.get(formal)
        if not source:
            problem = "is neither an input nor computed in it" if source is None else "is an input that the call omits"
            raise ModelReadError(f"{frame.call}: output `{formal}` of local function {frame.label} {problem}")
        node = onnx.NodeProto(op_type="Identity", input=[source], output=[actual])
        _extend_metadata(node, frame.metadata)
        self._limits.count(node)
        return node

    # -- names and attributes -----------------------------------------------------------------------------

    def _name(self, name: str, node: onnx.NodeProto, frame: _Frame) -> str:
        if frame.names is None or not name:
            return name
        found = frame.names.get(name)
        if found is None:
            raise ModelReadError(
                f"{describe(node)} in local function {frame.label} reads `{name}`, which is neither an input of the "
                "function nor computed in it; pass it as an input"
            )
        return found

    def _attributes(self, node: onnx.NodeProto, frame: _Frame) -> list[onnx.AttributeProto]:
        """The attributes of a node in terms of the result; references without a value are left out."""
        found: list[onnx.AttributeProto] = []
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found.append(self._own(attribute, frame))
                continue
            value = self._value(attribute.ref_attr_name, node, frame)
            if value is not None:
                copy = onnx.AttributeProto()
                copy.CopyFrom(value)
                copy.name = attribute.name
                found.append(copy)
            elif frame.callee is not None and is_required(node, attribute.name, frame.callee.opsets):
                raise ModelReadError(
                    f"{frame.call}: attribute `{attribute.ref_attr_name}` of local function {frame.label} has no "
                    f"value, and {describe(node)} requires it as `{attribute.name}`; give it in the call, or a default "
                    "in the function"
                )
        return found

    def _value(self, name: str, node: onnx.NodeProto, frame: _Frame) -> onnx.AttributeProto | None:
        """The value of an attribute of the function."""
        if frame.callee is None:
            raise ModelReadError(f"{describe(node)} refers to attribute `{name}` of a function, but is not in one")
        given = frame.given.get(name)
        if given is not None:
            return given
        default = frame.callee.defaults.get(name)
        if default is None or not subgraphs_of(default):
            return default
        key = frame.label, name
        if key in self._default_path:
            raise ModelReadError(
                f"{frame.call}: the default of attribute `{name}` of local function {frame.label} refers to itself, at "
                f"{describe(node)}; give the attribute in the call, or another default in the function"
            )
        self._default_path.append(key)
        try:
            return self._own(default, frame)
        finally:
            self._default_path.pop()

    def _own(self, attribute: onnx.AttributeProto, frame: _Frame) -> onnx.AttributeProto:
        """An attribute with a value, whose bodies are in terms of the result."""
        if not subgraphs_of(attribute):
            return attribute
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute)
        for body in subgraphs_of(copy):
            self._rename_body(body, frame)
        return copy

    def _rename_body(self, body: onnx.GraphProto, frame: _Frame) -> None:
        if frame.names is None:
            self._replace_nodes(body, frame)
            return
        names = {name: self._names.take(f"{frame.prefix}/{name}") for name in _defined(body) if name}
        inner = replace(frame, names=frame.names.new_child(names))
        for value in (*body.input, *body.initializer, *(sparse.values for sparse in body.sparse_initializer)):
            value.name = names.get(value.name, "")
        stated = [_renamed(value, names[value.name]) for value in body.value_info if value.name in names]
        body.ClearField("value_info")
        body.value_info.extend(stated)
        body.ClearField("quantization_annotation")
        reader = onnx.NodeProto(op_type="the output list of body", name=body.name)
        for value in body.output:
            value.name = self._name(value.name, reader, inner)
        self._replace_nodes(body, inner)


def _name_outputs(
    function: onnx.FunctionProto, names: dict[str, str], produced: Mapping[str, None], outputs: Sequence[str]
) -> list[tuple[str, str]]:
    """Give values that are outputs the names of the call; return outputs that need an Identity: formal, actual."""
    repeated: list[tuple[str, str]] = []
    for formal, actual in zip(function.output, outputs, strict=False):
        if actual and formal in produced and formal not in names:
            names[formal] = actual
        elif actual:
            repeated.append((formal, actual))
    return repeated


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=value.type)


def _defined(graph: onnx.GraphProto) -> dict[str, None]:
    """The names of the values that a graph defines, without its bodies' values."""
    names = dict.fromkeys(value.name for value in graph.input)
    names |= dict.fromkeys(tensor.name for tensor in graph.initializer)
    names |= dict.fromkeys(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        for name in node.output:
            names[name] = None
    return names


def _has_bodies(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") or attribute.graphs or attribute.ref_attr_name for attribute in node.attribute)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix and len(prefix) + len(name) < _LONGEST_PREFIX else name[:_LONGEST_PREFIX]


def _merged(
    own: Iterable[onnx.StringStringEntryProto], more: Iterable[onnx.StringStringEntryProto]
) -> tuple[onnx.StringStringEntryProto, ...]:
    kept = {entry.key: entry for entry in own if entry.key != OPSET_TAG}
    return (*kept.values(), *(entry for entry in more if entry.key not in kept))


def _extend_metadata(node: onnx.NodeProto, entries: Sequence[onnx.StringStringEntryProto]) -> None:
    if entries:
        present = {entry.key for entry in node.metadata_props}
        node.metadata_props.extend(entry for entry in entries if entry.key not in present)
