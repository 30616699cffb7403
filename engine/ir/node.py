"""Nodes and their ports. A node holds its producers strongly and its consumers weakly.

So a node lives as long as any of its consumers, and an unused node is freed with its last Python reference.
A node that loses its last consumer is detached at once: it stops counting
as a consumer of its own inputs, which may detach their producers in turn. Parameters, Results and sinks stay.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from engine.errors import GraphError, ModelError
from engine.ir import inference
from engine.ir.element_type import ElementType
from engine.ir.shape import PartialShape
from engine.ir.single_floats import as_stored
from engine.ir.types import UNKNOWN, TensorType, ValueType, merge_types

if TYPE_CHECKING:
    from engine.ir.model import Model

new_id = itertools.count().__next__
"""Numbers nodes in the order of creation."""
_Consumers: TypeAlias = "dict[tuple[weakref.ref[Node], int], None]"


class _Edits:
    """Counts changes of edges between nodes, so that stale cached orders are detected."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


edits = _Edits()
_NO_ANNOTATIONS: Final[Mapping[str, Any]] = MappingProxyType({})
_ONE_UNKNOWN: Final = (UNKNOWN,)
_NO_BODIES: Final[Mapping[str, Model]] = MappingProxyType({})


class Output:
    """One output port of a node: a cheap handle, equal to every other handle of the same port."""

    __slots__ = ("index", "node")

    node: Node
    index: int

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index

    @property
    def type(self) -> ValueType:
        """The type of the value: a tensor, sequence, optional or map type."""
        return self.node._types[self.index]

    @property
    def element_type(self) -> ElementType:
        """The element type of a tensor. Raises `ModelError` for other values."""
        return self._tensor().element_type

    @property
    def shape(self) -> PartialShape:
        """The shape of a tensor. Raises `ModelError` for other values."""
        return self._tensor().shape

    @property
    def name(self) -> str:
        """The tensor's name: as imported, otherwise generated from the node's friendly name."""
        names = self.node._names
        if names is not None and names[self.index]:
            return names[self.index]
        base = self.node.friendly_name
        return base if len(self.node._types) == 1 else f"{base}.{self.index}"

    @name.setter
    def name(self, name: str) -> None:
        self.node.output(self.index)  # raises if there is none
        names = [""] * len(self.node._types) if self.node._names is None else list(self.node._names)
        names[self.index] = name
        self.node._names = names

    @property
    def target_inputs(self) -> list[Input]:
        """The input ports that read this value, in the order in which they were connected (a snapshot)."""
        consumers = self.node._consumers[self.index]
        if not consumers:
            return []
        return [Input(node, index) for ref, index in consumers if (node := ref()) is not None]

    @property
    def num_consumers(self) -> int:
        """The number of input ports that read this value."""
        return len(self.node._consumers[self.index] or ())

    def replace(self, replacement: Output | Node) -> None:
        """Make every consumer of this value read `replacement` instead.

        Raises `GraphError` if the node of `replacement` itself reads this value, which would cause a cycle.
        """
        new = replacement if type(replacement) is Output else as_output(replacement)
        self.node.replace_output(self.index, new)

    def _tensor(self) -> TensorType:
        value_type = self.node._types[self.index]
        if type(value_type) is not TensorType:
            raise ModelError(f"{self} is a {value_type}, not a tensor; read its .type")
        return value_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Output) and self.node is other.node and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self.node), self.index))

    def __str__(self) -> str:
        return f"output {self.index} of {self.node}"

    def __repr__(self) -> str:
        return f"<Output {self.index} of {self.node}: {self.type}>"


class Input:
    """One input port of a node: a cheap handle, equal to every other handle of the same port."""

    __slots__ = ("index", "node")

    node: Node
    index: int

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index

    @property
    def source_output(self) -> Output:
        """The output port that this input reads. Raises `GraphError` for an omitted optional input."""
        return self.node.input_value(self.index)

    @property
    def type(self) -> ValueType:
        """The type of the value that the port reads."""
        return self.source_output.type

    @property
    def element_type(self) -> ElementType:
        """The element type of the tensor that is read."""
        return self.source_output.element_type

    @property
    def shape(self) -> PartialShape:
        """The shape of the tensor that is read."""
        return self.source_output.shape

    def replace_source_output(self, source: Output | Node) -> None:
        """Read `source` instead. The former producer leaves the graph if this was its last consumer."""
        self.node._set_source(self.index, as_output(source))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Input) and self.node is other.node and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self.node), ~self.index))

    def __str__(self) -> str:
        return f"input {self.index} of {self.node}"

    def __repr__(self) -> str:
        return f"<Input {self.index} of {self.node}>"


def as_output(value: OutputLike) -> Output:
    """`value` as an output port; a node must have exactly one. Raises `GraphError` listing its ports."""
    if type(value) is Output:
        return value
    if isinstance(value, Node):
        if len(value._types) != 1:
            ports = ", ".join(f"output({i}): {t}" for i, t in enumerate(value._types))
            raise GraphError(
                f"{value} has {len(value._types)} outputs, so it is ambiguous; select one of {ports or 'none'}"
            )
        return Output(value, 0)
    raise GraphError(f"expected a Node or an Output, got {type(value).__name__}: {value!r}")


class Node:
    """One operation of a model.

    Args:
        op_type: the operator's name.
        inputs: producers, in port order; None for an omitted optional input. For a node with bodies, the formal
            inputs are followed by the values that the bodies capture: see `Model.captures`.
        attributes: values by name: int, float, str, bytes, numpy array, a value type, a `Model` (a body), or
            tuples of these. Floats are rounded to f32, which ONNX stores (`ModelError` if one is beyond).
        domain: the operator's domain, "" for ONNX's own.
        num_outputs: the number of output ports.
        types: the output types if known; otherwise they are inferred (`TypeInferenceError`).
    """

    __slots__ = (
        "__weakref__", "_attached", "_consumers", "_name", "_names", "_pinned", "_rt_info", "_seen", "_sources",
        "_types", "attributes", "domain", "id", "op_type",
    )  # fmt: skip

    op_type: str
    domain: str
    attributes: dict[str, Any]
    id: int

    def __init__(
        self,
        op_type: str,
        inputs: Iterable[OutputLike | None] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        num_outputs: int = 1,
        types: Sequence[ValueType] | None = None,
        friendly_name: str | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        self._attached = False
        self.op_type = op_type
        self.domain = domain
        self.attributes = {name: as_stored(name, value) for name, value in attributes.items()} if attributes else {}
        self.id = new_id()
        self._name = friendly_name
        self._names = output_names
        self._rt_info: dict[str, Any] | None = None
        self._pinned = False
        self._sources = sources = []  # type: list[Output | None]
        for value in inputs:
            sources.append(value if type(value) is Output or value is None else as_output(value))
        self._seen: tuple[ValueType | None, ...] | None = None
        try:
            if types is None:
                self._types: Sequence[ValueType] = _ONE_UNKNOWN if num_outputs == 1 else (UNKNOWN,) * num_outputs
                self._types = types = inference.current(self)
                self._seen = self._input_types()
            else:
                self._types = types
            self._consumers: list[_Consumers | None] = [None] * len(types)
            self._attached = True
            if len(sources) == 1 and (source := sources[0]) and (known := source.node)._attached:
                consumers = known._consumers[source.index]
                if consumers is None:
                    known._consumers[source.index] = {(weakref.ref(self), 0): None}
                else:
                    consumers[weakref.ref(self), 0] = None
            elif sources:
                _link(self)
        except IndexError:  # checking every port beforehand would slow down creating nodes
            self._refuse_missing_ports()
            raise

    # -- names and annotations ----------------------------------------------------------------------------

    @property
    def friendly_name(self) -> str:
        """The name in messages, profiles and placement: as imported or set, otherwise op type and number."""
        return self._name if self._name is not None else f"{self.op_type}_{self.id}"

    @friendly_name.setter
    def friendly_name(self, name: str) -> None:
        self._name = name

    @property
    def has_own_name(self) -> bool:
        """Whether the friendly name was given rather than generated from type and number."""
        return self._name is not None

    @property
    def rt_info(self) -> dict[str, Any]:
        """Runtime info: annotations by users, plugins and passes, such as `affinity`. Use `annotations` to read it."""
        if self._rt_info is None:
            self._rt_info = {}
        return self._rt_info

    @rt_info.setter
    def rt_info(self, info: dict[str, Any]) -> None:
        self._rt_info = info or None

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The content of `rt_info`, for reading: avoids creating a dict, which most nodes do not have."""
        return self._rt_info or _NO_ANNOTATIONS

    # -- ports --------------------------------------------------------------------------------------------

    @property
    def num_inputs(self) -> int:
        """The number of input ports, including omitted ones in the middle."""
        return len(self._sources)

    @property
    def num_outputs(self) -> int:
        """The number of outputs, also of unused ones."""
        return len(self._types)

    def input(self, index: int) -> Input:
        """Input port `index`. Raises `GraphError` if it does not exist."""
        if not 0 <= index < len(self._sources):
            raise GraphError(f"{self} has no input {index}; it has {len(self._sources)}")
        return Input(self, index)

    def output(self, index: int) -> Output:
        """Output port `index`. Raises `GraphError` if it does not exist."""
        if not 0 <= index < len(self._types):
            raise GraphError(f"{self} has no output {index}; it has {len(self._types)}")
        return Output(self, index)

    @property
    def inputs(self) -> list[Input]:
        """The input ports in order, also those without a source; a new list."""
        return [Input(self, index) for index in range(len(self._sources))]

    @property
    def outputs(self) -> list[Output]:
        """The output ports in order; a new list."""
        return [Output(self, index) for index in range(len(self._types))]

    @property
    def input_values(self) -> list[Output | None]:
        """The value that each input port reads; None for an omitted optional input."""
        return list(self._sources)

    # Passes read these for each node of large graphs, so at run time they are the slots themselves, see below.
    if TYPE_CHECKING:

        @property
        def sources(self) -> Sequence[Output | None]:
            """Like `input_values`, but not a copy, so it changes with the graph. Read-only."""

        @property
        def output_types(self) -> Sequence[ValueType]:
            """The type of each output port. Read-only."""

        @property
        def is_attached(self) -> bool:
            """Whether the node is in a graph: it is pinned, or one of its outputs has consumers. Read-only."""

    @property
    def output_names(self) -> Sequence[str] | None:
        """The name of each output port as imported or set, "" if it has none; None if no port has one."""
        return self._names

    @output_names.setter
    def output_names(self, names: Sequence[str] | None) -> None:
        self._names = names

    def has_input(self, index: int) -> bool:
        """Whether input `index` exists and is not omitted."""
        return 0 <= index < len(self._sources) and self._sources[index] is not None

    def input_value(self, index: int) -> Output:
        """The value that input `index` reads. Raises `GraphError` if the input does not exist or is omitted."""
        if not 0 <= index < len(self._sources):
            raise GraphError(f"{self} has no input {index}; it has {len(self._sources)}")
        source = self._sources[index]
        if source is None:
            raise GraphError(f"optional input {index} of {self} is omitted; check has_input({index}) first")
        return source

    @property
    def is_pinned(self) -> bool:
        """True for a node that stays without consumers: a Parameter, a Result or a sink."""
        return self._pinned

    @property
    def is_consumed(self) -> bool:
        """Whether any of its outputs has consumers."""
        for consumers in self._consumers:  # noqa: SIM110 - a generator costs five times as much
            if consumers:
                return True
        return False

    @property
    def has_bodies(self) -> bool:
        """True for If, Loop, Scan and other nodes with subgraphs."""
        for value in self.attributes.values():  # noqa: SIM110 - a generator costs five times as much
            if isinstance(value, Subgraph):
                return True
        return False

    @property
    def bodies(self) -> Mapping[str, Model]:
        """The subgraphs of If, Loop, Scan and similar nodes, by attribute name."""
        if not self.has_bodies:
            return _NO_BODIES
        return {name: value for name, value in self.attributes.items() if isinstance(value, Subgraph)}  # type: ignore[misc]

    @property
    def num_formal_inputs(self) -> int:
        """The number of inputs of the operator itself, without the values that its bodies capture."""
        return len(self._sources) - sum(len(body.captures) for body in self.bodies.values())

    def captured_values(self, body_name: str) -> list[Output]:
        """The values that one body captures, in the order of `Model.captures`."""
        position = self.num_formal_inputs
        for name, body in self.bodies.items():
            if name == body_name:
                return [self.input_value(position + i) for i in range(len(body.captures))]
            position += len(body.captures)
        raise GraphError(f"{self} has no body {body_name!r}; it has {', '.join(self.bodies) or 'none'}")

    # -- changes ------------------------------------------------------------------------------------------

    def set_attribute(self, name: str, value: Any) -> None:
        """Set one attribute, floats rounded to f32; types are inferred again at the next validation."""
        self.attributes[name] = as_stored(name, value)
        self._seen = None

    def forget_inferred_types(self) -> None:
        """Make the next validation infer the output types, even if it would detect no change."""
        self._seen = None

    def add_output(self, value_type: ValueType) -> Output:
        """Append an output of this type, and return it. Existing outputs keep their indices."""
        self._types = [*self._types, value_type]
        self._consumers.append(None)
        if self._names is not None:
            self._names = [*self._names, ""]
        return Output(self, len(self._types) - 1)

    def set_output_type(self, index: int, value_type: ValueType) -> None:
        """Set the type of one output, for importers that read it from the file. Raises `GraphError`."""
        if not 0 <= index < len(self._types):
            self.output(index)  # raises
        types = list(self._types)
        types[index] = value_type
        self._types = types

    def settle_types(self) -> None:
        """Mark the output types as valid for the current inputs, for importers that know them.

        Validation then keeps them, and infers nothing until an input's type or an attribute changes.
        """
        self._seen = self._input_types()

    def has_settled_types(self) -> bool:
        """Whether `infer_types` would infer nothing: there are no bodies, and no input's type or attribute changed."""
        seen = self._seen
        if seen is None or len(seen) != len(self._sources):
            return False
        for position, source in enumerate(self._sources):
            if source is None:
                if seen[position] is not None:
                    return False
                continue
            types, known = source.node._types, seen[position]
            if source.index >= len(types) or (known is not types[source.index] and known != types[source.index]):
                return False
        return not self.has_bodies

    def infer_types(self) -> bool:
        """Infer the output types again if inputs or attributes changed; return whether a type changed.

        Known types that inference from this node alone cannot find (a shape computed by other nodes) are kept as
        long as the input types stay the same or become more specific. Bodies are always validated, since they may have
        changed. Raises `TypeInferenceError`.
        """
        if self.has_settled_types():
            return False
        seen = self._input_types()
        before = self._seen
        inferred = inference.infer(self)
        if before is not None and (before == seen or _all_refined(before, seen)):
            inferred = [_merged(old, new) for old, new in zip(self._types, inferred, strict=True)]
        self._seen = seen
        changed = list(inferred) != list(self._types)
        if changed:
            self._types = inferred
        return changed

    def clone_with_new_inputs(self, inputs: Iterable[OutputLike | None]) -> Node:
        """A new node of the same operator, attributes, name and rt_info that reads `inputs`.

        Bodies are cloned too. Types are inferred from the new inputs unless these have the old types.
        """
        sources = [None if value is None else as_output(value) for value in inputs]
        same = [s and s.type for s in sources] == [s and s.type for s in self._sources]
        attributes = {
            name: value.clone() if isinstance(value, Subgraph) else value for name, value in self.attributes.items()
        }
        node = Node(
            self.op_type,
            sources,
            attributes,
            domain=self.domain,
            num_outputs=len(self._types),
            types=list(self._types) if same else None,
            friendly_name=self._name,
        )
        if same and self._seen is not None:
            node._seen = node._input_types()
        if self._rt_info:
            node._rt_info = dict(self._rt_info)
        return node

    def __del__(self, make_ref: Callable[[Node], weakref.ref[Node]] = weakref.ref) -> None:
        # A freed node must not count as a consumer. Its weak references still work here, but during interpreter
        # exit this module's globals may be gone, so they are passed as defaults.
        try:
            if not self._attached:
                return
        except AttributeError:  # its __init__ raised
            return
        ref = make_ref(self)
        for position, source in enumerate(self._sources):
            if source is not None:
                consumers = source.node._consumers[source.index]
                if consumers is not None:
                    consumers.pop((ref, position), None)

    # -- edges --------------------------------------------------------------------------------------------

    def replace_output(self, index: int, new: Output) -> None:
        """Make every consumer of output `index` read `new` instead, as `Output.replace` does.

        Raises `GraphError` if the node of `new` itself reads this output, which would cause a cycle.
        """
        producer = new.node
        if producer is self and new.index == index:
            return
        for source in producer._sources:
            if source is not None and source.node is self and source.index == index:
                raise GraphError(
                    f"cannot replace {Output(self, index)} by {new}: {producer} reads it, so the graph would have a "
                    "cycle; to insert a node, take target_inputs first and call replace_source_output on each"
                )
        if not 0 <= new.index < len(producer._types):
            raise GraphError(f"{producer} has no output {new.index}; it has {len(producer._types)}")
        moved = self._consumers[index]
        if not moved:
            return
        edits.count += 1
        self._consumers[index] = None
        freed: list[tuple[weakref.ref[Node], int]] | None = None
        for key in moved:
            reader = key[0]()
            if reader is None:  # freed by the collector of cycles, which clears references before it calls `__del__`
                freed = [*(freed or ()), key]
                continue
            reader._sources[key[1]] = new
            if producer.op_type == "Constant":
                reader._seen = None  # its value may decide the output types
        for key in freed or ():
            del moved[key]
        known = producer._consumers[new.index]
        if known:
            known.update(moved)
        else:
            producer._consumers[new.index] = moved
        if not producer._attached:
            producer._attached = True
            _link(producer)
        if not self._pinned:
            _detach(self)

    def _refuse_missing_ports(self) -> None:
        for position, source in enumerate(self._sources):
            if source is not None and source.index >= len(source.node._types):
                del self._sources[position:]  # earlier ones may be linked, which `__del__` undoes
                source.node.output(source.index)  # raises

    def _input_types(self) -> tuple[ValueType | None, ...]:
        if len(self._sources) == 1:
            source = self._sources[0]
            return (None if source is None else source.node._types[source.index],)
        return tuple([None if s is None else s.node._types[s.index] for s in self._sources])

    def _set_source(self, position: int, source: Output) -> None:
        if not 0 <= position < len(self._sources):
            raise GraphError(f"{self} has no input {position}; it has {len(self._sources)}")
        if not 0 <= source.index < len(source.node._types):
            raise GraphError(f"{source.node} has no output {source.index}; it has {len(source.node._types)}")
        old = self._sources[position]
        if old == source:
            return
        if source.node is self:
            raise GraphError(f"{self} cannot read its own output {source.index}: the graph would have a cycle")
        edits.count += 1
        self._sources[position] = source
        if self._seen is not None and source.node.op_type == "Constant":
            self._seen = None  # its value may decide the output types
        if not self._attached:
            return
        ref = weakref.ref(self)
        producer = source.node
        consumers = producer._consumers[source.index]
        if consumers is None:
            consumers = producer._consumers[source.index] = {}
        consumers[ref, position] = None
        if not producer._attached:
            producer._attached = True
            _link(producer)
        if old is not None:
            former = old.node._consumers[old.index]
            if former is not None:
                former.pop((ref, position), None)
                if not former:
                    _detach(old.node)

    def __str__(self) -> str:
        return f"{self.op_type} `{self.friendly_name}`"

    def __repr__(self) -> str:
        return f"<{self} ({len(self._sources)} in, {len(self._types)} out)>"


# A property in Python costs five times as much as a slot.
for _public, _slot in (("sources", "_sources"), ("output_types", "_types"), ("is_attached", "_attached")):
    setattr(Node, _public, Node.__dict__[_slot])


OutputLike: TypeAlias = Output | Node


class Subgraph:
    """The interface of a body in a node's attribute; `Model` is its only implementation."""

    __slots__ = ()

    name: str
    captures: list[Any]

    @property
    def results(self) -> Sequence[Node]:
        """The `Result` nodes, in output order."""
        raise NotImplementedError

    @property
    def variables(self) -> Sequence[Any]:
        """The values that requests keep between inferences; a body has none."""
        raise NotImplementedError

    def ordered_nodes(self) -> Sequence[Node]:
        """All nodes, with producers before their consumers."""
        raise NotImplementedError

    def clone(self) -> Any:
        """Return a deep copy of the graph, which shares the data of constants."""
        raise NotImplementedError


def _merged(old: ValueType, new: ValueType) -> ValueType:
    try:
        return merge_types(old, new)
    except ModelError:
        return new


def _all_refined(old: tuple[ValueType | None, ...], new: tuple[ValueType | None, ...]) -> bool:
    """Whether each new type equals the old one or is more specific."""
    return len(old) == len(new) and all(map(_is_refined, old, new))


def _is_refined(old: ValueType | None, new: ValueType | None) -> bool:
    if old is None or new is None or old == new:
        return old == new
    try:
        return merge_types(old, new) == new
    except ModelError:
        return False


def _link(node: Node) -> None:
    """Make an attached node a consumer of its sources, and attach detached producers again."""
    returned: list[Node] | None = None
    while True:
        ref = weakref.ref(node)
        for position, source in enumerate(node._sources):
            if source is not None:
                producer = source.node
                consumers = producer._consumers[source.index]
                if consumers is None:
                    producer._consumers[source.index] = {(ref, position): None}
                else:
                    consumers[ref, position] = None
                if not producer._attached:
                    producer._attached = True
                    returned = returned or []
                    returned.append(producer)
        if not returned:
            return
        node = returned.pop()


def _detach(node: Node) -> None:
    """Detach `node` from the graph if it has no consumers, and then the nodes that only it consumed."""
    unread: list[Node] | None = None
    while True:
        if (
            node._attached
            and not node._pinned
            and (not node._consumers[0] if len(node._consumers) == 1 else not node.is_consumed)
        ):
            node._attached = False
            ref = weakref.ref(node)
            for position, source in enumerate(node._sources):
                if source is not None:
                    consumers = source.node._consumers[source.index]
                    if consumers is not None:
                        consumers.pop((ref, position), None)
                        if not consumers:
                            unread = unread or []
                            unread.append(source.node)
        if not unread:
            return
        node = unread.pop()
