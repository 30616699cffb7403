"""Names for export, unique in their graph and in all enclosing graphs, as ONNX requires."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from engine.errors import ModelWriteError
from engine.ir import UNREAD_CONSTANTS, Constant, Model, Node, Output, Result


class UniqueNames:
    """Names that are taken, by this graph or an enclosing one."""

    __slots__ = ("_counts", "_outer")

    def __init__(self, outer: UniqueNames | None = None) -> None:
        self._counts: dict[str, int] = {}  # for each name, the last number appended to it
        self._outer = outer

    def has_own(self, name: str) -> bool:
        """Whether this graph took the name."""
        return name in self._counts

    def __contains__(self, name: str) -> bool:
        names: UniqueNames | None = self
        while names is not None:
            if name in names._counts:
                return True
            names = names._outer
        return False

    def take(self, base: str) -> str:
        """Take `base`, with a number appended if it is already taken. Amortized constant time."""
        if base not in self:
            self._counts[base] = 0
            return base
        count = self._counts.get(base, 0)
        while True:
            count += 1
            name = f"{base}_{count}"
            if name not in self:
                self._counts[base], self._counts[name] = count, 0
                return name


class Scope:
    """The names of one graph's values, and the Identity nodes that writing it adds.

    A capture has the name of its value in the enclosing graph, so that it becomes implicit; so does a
    constant that is also in the enclosing graph, of which the importer gives bodies copies. A value
    that is an output has the output's name; if it cannot (an input, or a value with two output names), an
    Identity is added.

    Args:
        model: the graph.
        strict: whether inputs and outputs must keep their names, and outputs without one are omitted; raises
            `ModelWriteError` if two inputs or outputs have the same name.
        keep_unread: whether constants that are also inputs of the file are written although no node reads them; if
            `strict`, this includes constants that only bodies read.
        outer: the scope of the graph that encloses a body.
        captured: the values of that graph that the captures of a body read.

    Attributes:
        names: the name of every value; "" for an omitted output.
        identities: for results that need one, the added Identity node.
        results: the names of the outputs, in order.
        shared: constants that are written in an enclosing graph.
        overridable: constants to be written here that no node of this graph reads.
        bodies: the scopes of the bodies, by the id of the body.
    """

    __slots__ = (
        "_constants",
        "_outer",
        "_strict",
        "_taken",
        "bodies",
        "identities",
        "model",
        "names",
        "overridable",
        "results",
        "shared",
    )

    def __init__(
        self,
        model: Model,
        *,
        strict: bool,
        keep_unread: bool = False,
        outer: Scope | None = None,
        captured: Sequence[Output] = (),
    ) -> None:
        self.model = model
        self.names: dict[Output, str] = {}
        self.identities: dict[Result, Node] = {}
        self.results: list[str] = []
        self.shared: set[Node] = set()
        self.bodies: dict[int, Scope] = {}
        self.overridable: list[Constant] = []
        self._constants: dict[str, Constant] = {}
        self._outer = outer
        self._strict = strict
        self._taken: UniqueNames = UniqueNames(None if outer is None else outer._taken)
        if outer is not None:
            for capture, value in zip(model.captures, captured, strict=True):
                self.names[capture.output(0)] = outer.names[value]
        self._name_border()
        nodes = model.ordered_nodes()
        if strict and outer is None:
            self._name_overridable(model.overridable_constants, set(nodes))
        elif keep_unread:
            self._name_overridable({each.output(0).name: each for each in model.rt_info.get(UNREAD_CONSTANTS, ())})
        for node in nodes:
            for output in node.outputs:
                if output not in self.names:
                    self.names[output] = self._name(output)
            if isinstance(node, Constant) and node not in self.shared:
                self._constants[self.names[node.output(0)]] = node
        for node in nodes:
            for key, body in node.bodies.items():
                self.bodies[id(body)] = Scope(body, strict=strict, outer=self, captured=node.captured_values(key))

    @property
    def is_body(self) -> bool:
        """True for the graphs in nodes."""
        return self._outer is not None

    def walk(self) -> Iterator[Scope]:
        """This scope and the scopes of all bodies in it, at any depth."""
        yield self
        for body in self.bodies.values():
            yield from body.walk()

    def _name_border(self) -> None:
        inputs: set[Output] = set()
        for parameter in self.model.parameters:
            value = parameter.output(0)
            self.names[value] = self._border_name(parameter.friendly_name, "input")
            inputs.add(value)
        for result in self.model.results:
            name, source = result.friendly_name, result.input_value(0)
            if source in inputs and self.names[source] == name:
                self.results.append(name)
                continue
            name = self._border_name(name, "output")
            self.results.append(name)
            if source in self.names:
                identity = Node("Identity", [source], types=[source.type], friendly_name=f"{name}/Identity")
                self.identities[result] = identity
                self.names[identity.output(0)] = name
            else:
                self.names[source] = name

    def _name_overridable(self, constants: Mapping[str, Constant], nodes: Container[Node] = ()) -> None:
        """Name the constants that are also inputs of the file, and that only bodies read, or nothing."""
        for name, constant in constants.items():
            if constant not in nodes and name not in self._taken:
                self.names[constant.output(0)] = self._taken.take(name)
                self._constants[name] = constant
                self.overridable.append(constant)

    def _name(self, output: Output) -> str:
        if isinstance(output.node, Constant) and self._find_shared(output.node):
            self.shared.add(output.node)
            return output.node.friendly_name
        return "" if self._strict and _is_left_out(output) else self._taken.take(output.name or "value")

    def _find_shared(self, constant: Constant) -> bool:
        """Whether the constant's name refers, in the enclosing graphs, to a constant with the same data."""
        name, scope = constant.friendly_name, self._outer
        while scope is not None:
            if scope._taken.has_own(name):
                found = scope._constants.get(name)
                return found is not None and found.shares_data(constant)
            scope = scope._outer
        return False

    def _border_name(self, name: str, what: str) -> str:
        if not self._strict or self._outer is not None:  # inputs and outputs of a body are matched by position
            return self._taken.take(name or "value")
        if not name or name in self._taken:
            problem = "has no name" if not name else f"`{name}` has the name of another input or output"
            raise ModelWriteError(
                f"model `{self.model.name}`: an {what} {problem}; rename it: ONNX identifies inputs and outputs by name"
            )
        return self._taken.take(name)


def _is_left_out(output: Output) -> bool:
    """Whether the imported file did not name this output, and it has no consumers."""
    names = output.node.output_names
    return names is not None and not names[output.index] and not output.target_inputs
