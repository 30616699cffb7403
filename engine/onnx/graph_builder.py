"""Converts graph protos to the IR node by node: upgrades and types each, and makes captures of bodies explicit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from engine import ops
from engine.errors import ModelError, TypeInferenceError, UnsupportedError
from engine.ir import (
    UNKNOWN,
    UNREAD_CONSTANTS,
    Constant,
    Model,
    Node,
    Output,
    Parameter,
    PartialShape,
    Result,
    TensorType,
    ValueType,
    as_dimension,
    undefined,
)
from engine.onnx.annotations import annotated, is_sink
from engine.onnx.attributes import attribute_type, read_attribute, read_constant
from engine.onnx.branches import is_decided_by_types
from engine.onnx.calls import opset_of
from engine.onnx.foreign import is_known
from engine.onnx.functions import describe
from engine.onnx.hazards import check_call
from engine.onnx.input_checks import InputChecker
from engine.onnx.naming import UniqueNames
from engine.onnx.shapes import (
    DeclaredTypes,
    TypeReader,
    is_complete,
    is_corrected,
    is_narrower,
    refine,
    without_shapes,
)
from engine.onnx.stored_tensors import TensorStore
from engine.onnx.upgrades import OldCall, needs_upgrade, resolve_version, upgrade_call
from engine.onnx.upgrades.emit import emit, i64s, reshape_to
from engine.onnx.values import Values
from engine.ops.loop import NUM_FIXED, LoopForm, formal_inputs
from engine.ops.spec import check_spec
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

if TYPE_CHECKING:
    from engine.onnx.contrib import ContribCall

_log: Final = logging.getLogger("engine.onnx")
_GRAPH: Final = onnx.AttributeProto.GRAPH


@dataclass(frozen=True, slots=True)
class ImportContext:
    """The context shared by all graphs of one model.

    Attributes:
        store: reads tensors.
        types: reads types.
        opsets: versions by domain.
        exact: the file is canonical and states every type: nothing is upgraded or inferred.
        checker: rejects inputs that an operator does not accept.
        declared: the names of outputs whose lengths are known only from the file's declarations.
        is_overridable: initializers that are also inputs may be given other values.
    """

    store: TensorStore
    types: TypeReader
    opsets: Mapping[str, int]
    exact: bool = False
    checker: InputChecker = field(default_factory=InputChecker)
    declared: set[str] = field(default_factory=set)
    is_overridable: bool = True


class GraphBuilder:
    """Builds one graph; its bodies have their own builders, whose `outer` is this graph's values."""

    __slots__ = (
        "_context",
        "_declared",
        "_graph",
        "_inferred",
        "_is_body",
        "_names",
        "_overridable",
        "_parameters",
        "_sinks",
        "_values",
    )

    def __init__(
        self,
        context: ImportContext,
        graph: onnx.GraphProto,
        declared: DeclaredTypes | None = None,
        outer: Values | None = None,
        *,
        is_unshaped: bool = False,
    ) -> None:
        self._context = context
        self._graph = graph
        self._declared = declared
        self._is_body = outer is not None
        self._inferred = {value.name: value.type for value in (*graph.value_info, *graph.output)}
        if context.exact:  # the declaration of an output beyond the type of its value is not proven
            self._inferred.update((value.name, value.type) for value in graph.value_info)
        if is_unshaped:
            self._inferred = {}
        self._values = Values(graph.name, outer, is_unshaped=is_unshaped)
        self._parameters: list[Parameter] = []
        self._sinks: list[Node] = []
        self._overridable: list[Node] = []
        self._names = UniqueNames()

    def build(self) -> tuple[Model, list[Output]]:
        """The graph as a model, and the values of the outer graph that its captures read, in order.

        The graph must be sorted (`order_graph`). Raises `ModelError`, and `UnsupportedError` for valid content that
        is newer than this engine.
        """
        self._add_leaves()
        for proto in self._graph.node:
            self._add_node(proto)
        names = _distinct([info.name for info in self._graph.output], self._values.by_name)
        results = [self._result(info, name) for info, name in zip(self._graph.output, names, strict=True)]
        name = self._graph.name or "graph"
        model = Model(results, self._parameters, self._sinks, name)
        captures, sources = self._values.captures(model)
        if captures:
            model = Model(results, self._parameters, self._sinks, name, captures=captures)
        if self._overridable:
            read = set(model.overridable)
            unread = tuple(each for each in self._overridable if each.output(0).name not in read)
            if unread:
                model.rt_info[UNREAD_CONSTANTS] = unread
        return model, sources

    # -- values -------------------------------------------------------------------------------------------

    def _add_leaves(self) -> None:
        graph, store, values = self._graph, self._context.store, self._values.by_name
        for tensor in graph.initializer:
            constant = annotated(store.constant(tensor), tensor)
            if self._context.exact and not self._is_body and constant.annotations.get("overridable"):
                self._overridable.append(constant)
            values[tensor.name] = constant.output(0)
        for sparse in graph.sparse_initializer:
            values[sparse.values.name] = store.sparse_constant(sparse).output(0)
        for info in graph.input:
            initializer = values.get(info.name)
            if initializer is not None:
                if self._context.is_overridable and not self._is_body:
                    self._annotate_overridable(initializer.node, info)
                    self._overridable.append(initializer.node)
                continue
            value_type = self._context.types.read(info.type, info.name)
            if self._values.is_unshaped and isinstance(value_type, TensorType):
                value_type = TensorType(value_type.element_type, PartialShape.dynamic())
            parameter = Parameter(value_type, friendly_name=info.name)
            annotated(parameter, info)
            self._parameters.append(parameter)
            values[info.name] = parameter.output(0)

    def _annotate_overridable(self, node: Node, info: onnx.ValueInfoProto) -> None:
        """Mark an initializer that is also an input with the lengths that its declaration leaves open."""
        node.rt_info["overridable"] = True
        if not info.type.tensor_type.HasField("shape"):
            return
        found, declared = node.output_types[0], self._context.types.read(info.type, info.name)
        if not isinstance(found, TensorType) or not isinstance(declared, TensorType):
            return
        if found.element_type is declared.element_type and found.shape.compatible(declared.shape):
            lengths = [dim.min if dim.is_static else None for dim in declared.shape]  # defaults need not share symbols
            if None in lengths:
                node.rt_info["declared_shape"] = lengths

    def _result(self, info: onnx.ValueInfoProto, name: str) -> Result:
        """The output of `info`; a value that is listed twice has the name once, and then others."""
        source = self._values.get(info.name)
        declared = self._context.types.read(info.type, info.name) if self._declared is None else None
        if self._declared is not None:
            declared = self._declared.get(info.name, self._context.types)
        result = Result(source, name)
        if declared is not None:
            _check_declared(source, declared, info.name)
            stated = refine(source.type, declared)
            if not self._is_body and stated != source.type:
                result.declare(stated)
                if is_narrower(stated, source.type):
                    self._context.declared.add(info.name)
        return annotated(result, info)

    # -- nodes --------------------------------------------------------------------------------------------

    def _add_node(self, proto: onnx.NodeProto) -> None:
        op_type, domain = proto.op_type, proto.domain
        if domain == "ai.onnx":
            domain = ""
        outputs = _without_tail(proto.output)
        if not outputs and not proto.metadata_props and domain in ops.CANONICAL_VERSIONS:
            return  # only custom operators have side effects, unless metadata says so
        values, find = self._values.by_name, self._values.get
        inputs = [(values.get(name) or find(name)) if name else None for name in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if op_type == "Loop" and not domain:
            inputs = formal_inputs(inputs, len(inputs))
        try:
            if op_type == "Constant" and not domain:
                constant = read_constant(proto, self._context.store)
                values[constant.friendly_name] = annotated(constant, proto).output(0)
                return
            name = self._names.take(proto.name or next(filter(None, outputs), op_type))
            attributes = self._attributes(proto, inputs)
            if is_known(op_type, domain) and not self._context.exact:
                from engine.onnx.contrib import ContribCall

                foreign = ContribCall(op_type, domain, 1, tuple(inputs), attributes, len(outputs), name)
                values_found = self._expanded(foreign, proto, outputs)
                if values_found is not None:
                    self._adopt_values(values_found, outputs, proto, name)
                    return
            if domain not in ops.CANONICAL_VERSIONS and not self._context.exact:
                extended = self._extended(op_type, domain, inputs, attributes, outputs, name)
                if extended is not None:
                    self._adopt(extended, outputs, proto)
                    return
            if self._context.exact or domain not in ops.CANONICAL_VERSIONS:
                types = [self._stated_type(output) for output in outputs]
                node = Node(op_type, inputs, attributes, domain=domain, types=types, friendly_name=name)
                if not self._context.exact:
                    check_spec(node)
                self._adopt(node, outputs, proto)
                return
            version = resolve_version(op_type, domain, opset_of(proto, domain, self._context.opsets))
        except (ModelError, UnsupportedError) as e:
            if str(e).startswith(f"{describe(proto)}: "):
                raise
            raise type(e)(f"{describe(proto)}: {e}") from e
        if not needs_upgrade(op_type, domain, version):
            self._adopt(self._typed_node(op_type, inputs, attributes, domain, outputs, name), outputs, proto)
            return
        call = OldCall(op_type, domain, version, tuple(inputs), attributes, len(outputs), name)
        try:
            upgraded = upgrade_call(call)
        except (ModelError, UnsupportedError) as e:
            if f"`{name}`" in str(e):
                raise
            raise type(e)(f"{describe(proto)}: {e}") from e  # the error names a node that the upgrade made
        if isinstance(upgraded, OldCall):
            self._name_made(_nameless(upgraded.inputs), name, proto)
            node = self._typed_node(
                upgraded.op_type, upgraded.inputs, upgraded.attributes, upgraded.domain, outputs, name
            )
            self._adopt(node, outputs, proto)
        else:
            self._adopt_values(upgraded, outputs, proto, name)

    def _expanded(
        self, call: ContribCall, proto: onnx.NodeProto, outputs: Sequence[str]
    ) -> Sequence[Output | None] | None:
        """See `contrib.expand`. A rank or a last length that only the file states is compared when it runs."""
        from engine.onnx import contrib

        try:
            return contrib.expand(call, outputs)
        except UnsupportedError:
            names = proto.input[: len(call.inputs)]
            inputs = tuple(self._as_declared(*each) for each in zip(call.inputs, names, strict=True))
            if inputs == call.inputs:
                raise
        return contrib.expand(replace(call, inputs=inputs), outputs)

    def _as_declared(self, value: Output | None, name: str) -> Output | None:
        if value is None or self._declared is None or not isinstance(value.type, TensorType):
            return value
        stated = refine(value.type, self._declared.get(name, self._context.types))
        if not isinstance(stated, TensorType) or not is_narrower(stated, value.type):
            return value
        rank = len(stated.shape)
        if value.shape.rank.is_dynamic:  # a vector of another length and a value of another rank are refused
            value = reshape_to(value, emit("Reshape", emit("Shape", value), i64s([rank])))
        last = stated.shape[-1] if rank else as_dimension(None)
        if last.is_static and last.min and value.shape[-1].is_dynamic:
            # All other lengths are copied, so that only this one fits; operators need no others.
            value = emit("Reshape", value, i64s([0] * (rank - 1) + [last.min]))
        return value

    def _extended(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[Output | None],
        attributes: Mapping[str, Any],
        outputs: Sequence[str],
        name: str,
    ) -> Node | None:
        """A node of an extension's operator, with inferred types; None for any other operator of a custom domain."""
        op = ops.find_op(op_type, domain)
        if op is None or not op.extension:
            return None
        version = self._context.opsets.get(domain, op.since_version)
        if version < op.since_version:
            raise UnsupportedError(
                f"the model uses version {version} of domain `{domain}`; extension {op.extension} defines {op_type} "
                f"from version {op.since_version} on"
            )
        # Kernels of libraries write all outputs, also those that the file does not name.
        count = max(len(outputs), len(op.outputs))
        node = ops.create(op_type, inputs, attributes, domain=domain, num_outputs=count, friendly_name=name)
        for index, output in enumerate(outputs):
            stated = without_shapes(self._stated_type(output))
            assert stated is not None
            self._refine(node.output(index), stated)
        return node

    def _typed_node(
        self,
        op_type: str,
        inputs: Sequence[Output | None],
        attributes: Mapping[str, Any],
        domain: str,
        outputs: Sequence[str],
        name: str,
    ) -> Node:
        """A canonical node with the types that whole-graph inference found, or otherwise with types inferred here.

        If inference here finds other types, the nodes that read them are also inferred here. A type that only the file
        declares does not replace inference: ONNX leaves nodes untyped whose inputs contradict each other.

        Raises `TypeInferenceError` if the operator does not accept its inputs.
        """
        found = [self._found_type(output) for output in outputs]
        stated = [self._with_declared(t, output) for t, output in zip(found, outputs, strict=True)]
        changed = self._values.changed
        if (
            all(is_complete(t) or not o for t, o in zip(found, outputs, strict=True))
            and not is_corrected(op_type, domain, attributes)
            and not (changed and any(source in changed for source in inputs))
            and self._declared is not None  # in a body, whole-graph inference includes the file's declarations
        ):
            node = Node(op_type, inputs, attributes, domain=domain, types=stated, friendly_name=name)
            self._context.checker.check(node)
            return node
        check_call(op_type, inputs, name)
        node = Node(op_type, inputs, attributes, domain=domain, num_outputs=len(outputs), friendly_name=name)
        for index, value_type in enumerate(stated):
            self._refine(node.output(index), value_type)
        return node

    def _refine(self, value: Output, stated: ValueType) -> None:
        """Refine the type of `value` by `stated`; record the value if `stated` is less specific or wrong."""
        value_type = refine(value.type, stated)
        value.node.set_output_type(value.index, value_type)
        if value_type != stated:
            self._values.changed.add(value)

    def _adopt(self, node: Node, outputs: Sequence[str], proto: onnx.NodeProto) -> None:
        """Make `node` the producer of `outputs`."""
        node.settle_types()
        if len(outputs) != 1 or outputs[0] != node.friendly_name:
            node.output_names = [*outputs, *[""] * (node.num_outputs - len(outputs))]
        for index, output in enumerate(outputs):
            if output:
                self._values.by_name[output] = Output(node, index)
        if (not outputs or proto.metadata_props) and is_sink(proto):
            self._sinks.append(node)
        if proto.metadata_props or proto.doc_string:
            annotated(node, proto)

    def _adopt_values(
        self, values: Sequence[Output | None], outputs: Sequence[str], proto: onnx.NodeProto, name: str
    ) -> None:
        """Make `values`, which an upgrade computed by unnamed nodes, the values of `outputs`."""
        made = _nameless(values)
        if made:
            main = next(iter(made))
            self._name_made(made, name, proto)
            main.friendly_name = name
        for value, output in zip(values, outputs, strict=False):
            if not output or value is None:
                continue
            if value.node in made:
                value.name = output
                self._refine(value, self._stated_type(output))
            self._values.by_name[output] = value

    def _name_made(self, made: Iterable[Node], name: str, proto: onnx.NodeProto) -> None:
        """Give the nodes that an upgrade created for node `name` the annotations of `proto`, and names below `name`."""
        for node in made:
            node.friendly_name = self._names.take(f"{name}/{node.op_type}")
            if not isinstance(node, Constant):
                annotated(node, proto)
            for body in node.bodies.values():
                inner = [n for n in body.ordered_nodes() if not n.has_own_name and n.num_outputs]
                self._name_made(inner, name, proto)

    def _stated_type(self, name: str) -> ValueType:
        """The type of a value according to whole-graph inference and the file's declarations."""
        proto = self._inferred.get(name)
        if self._context.exact:
            return UNKNOWN if proto is None else self._context.types.read(proto, name)
        return self._with_declared(self._found_type(name), name)

    def _found_type(self, name: str) -> ValueType:
        """The type of a value that whole-graph inference found; in a body, it includes the file's declarations."""
        proto = self._inferred.get(name) if name else None
        return UNKNOWN if proto is None else self._context.types.inferred(proto)

    def _with_declared(self, found: ValueType, name: str) -> ValueType:
        if not name or self._declared is None:
            return found
        # Nothing proves the lengths: passes and kernels that relied on them would give results of another shape.
        return refine(found, without_shapes(self._declared.get(name, self._context.types)))

    # -- attributes ---------------------------------------------------------------------------------------

    def _attributes(self, proto: onnx.NodeProto, inputs: list[Output | None]) -> dict[str, Any]:
        """The attributes of a node. The values that its bodies capture are appended to `inputs`."""
        attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            kind = attribute.type or attribute_type(attribute)
            if kind == _GRAPH:
                body, captured = self._body(proto, attribute.g, inputs)
                attributes[attribute.name] = body
                inputs += captured
            else:
                attributes[attribute.name] = read_attribute(attribute, kind, self._context.store, self._closed_body)
        return attributes

    def _body(
        self, proto: onnx.NodeProto, graph: onnx.GraphProto, inputs: Sequence[Output | None]
    ) -> tuple[Model, list[Output]]:
        """A body; one that does not fit the shapes is built without them if it may be one that never runs."""
        is_unshaped = self._values.is_unshaped
        try:
            return GraphBuilder(self._context, graph, outer=self._values, is_unshaped=is_unshaped).build()
        except TypeInferenceError:
            if is_unshaped or proto.domain or not _may_never_run(proto.op_type, inputs):
                raise
        return GraphBuilder(self._context, graph, outer=self._values, is_unshaped=True).build()

    def _closed_body(self, graph: onnx.GraphProto) -> Model:
        """A body in a list of bodies, for which the IR does not support captures."""
        body, captured = GraphBuilder(self._context, graph, outer=self._values).build()
        if captured:
            names = ", ".join(f"`{value.name}`" for value in captured)
            raise UnsupportedError(
                f"body `{graph.name}`, one of a list of bodies, reads {names} of the enclosing graph; "
                "pass them as inputs of the node"
            )
        return body


def _distinct(names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """`names`, with numbers appended to repeated ones, so that they differ from the names of other values."""
    if len(set(names)) == len(names):
        return list(names)
    unique = UniqueNames()
    for other in set(taken).difference(names):
        unique.take(other)
    first = {name: unique.take(name) for name in dict.fromkeys(names)}
    return [first.pop(name) if name in first else unique.take(name) for name in names]


def _without_tail(names: Sequence[str]) -> list[str]:
    """`names` without trailing omitted ones."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _nameless(values: Iterable[Output | None]) -> dict[Node, None]:
    """The unnamed nodes that compute `values`, the producer of the first value first."""
    found: dict[Node, None] = {}
    stack = [value.node for value in values if value is not None][::-1]
    while stack:
        node = stack.pop()
        if node in found or node.has_own_name:
            continue
        found[node] = None
        stack += [source.node for source in reversed(node.input_values) if source is not None]
    return found


def _check_declared(source: Output, declared: ValueType, name: str) -> None:
    """Reject an output whose declared element type or kind differs from the computed one; warn if the shape differs."""
    found = source.type
    if declared == UNKNOWN or found == UNKNOWN:
        return
    if type(found) is not type(declared):
        raise TypeInferenceError(f"output `{name}` is declared as {declared}, but {source.node} gives a {found}")
    if isinstance(found, TensorType) and isinstance(declared, TensorType):
        pair = (found.element_type, declared.element_type)
        if pair[0] is not pair[1] and undefined not in pair:
            raise TypeInferenceError(f"output `{name}` is declared as {declared}, but {source.node} gives {found}")
        if not found.shape.compatible(declared.shape):
            _log.warning("output `%s` is declared as %s, but computed as %s", name, declared, found)


def _may_never_run(op_type: str, inputs: Sequence[Output | None]) -> bool:
    """Whether types or constants decide if a body of a node runs."""
    if op_type == "If":
        return is_decided_by_types(next(iter(inputs), None))
    if op_type != "Loop":
        return False
    count, condition = formal_inputs(inputs, len(inputs))[:NUM_FIXED]
    return LoopForm(count, condition, 0).never_runs
