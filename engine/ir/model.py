"""`Model`: the graph that importers create, passes change and plugins compile."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from numpy.typing import ArrayLike

from engine.errors import GraphError, ModelError, TypeInferenceError
from engine.ir.leaves import Constant, Parameter, Result
from engine.ir.node import Node, Output, OutputLike, Subgraph, _detach, as_output, edits
from engine.ir.printer import model_to_text
from engine.ir.shape import DimensionLike, ShapeLike
from engine.ir.variable import Variable
from engine.startup import paused_collector

DECLARED_LENGTHS: Final = "declared_lengths"
"""The rt_info key of a model some of whose lengths are known only because its file declares them for values."""

UNREAD_CONSTANTS: Final = "unread_constants"
"""The rt_info key of the constants that the file also lists as inputs, and that no node reads: a tuple."""

_T = TypeVar("_T")
_N = TypeVar("_N", bound=Node)


class Model(Subgraph):
    """A graph with named inputs and outputs.

    What applications use first:

        model = core.read_model("model.onnx")
        model.inputs, model.outputs            # their types and shapes; see `parameters` and `results`
        model.parameter("x").type              # of an input, by its name; `result("y")` is an output
        model.node("relu").op_type             # a node by its name in the file
        model.ordered_nodes()                  # all nodes, each after those that it reads
        print(model)                           # the graph as text
        model.reshape({"x": [8, 2]})           # other shapes of inputs; see also `set_batch` and `extract`
        model.save("changed.onnx")
        network = core.compile_model(model, "TEMPLATE")

    A model refers to its results, sinks and parameters; every other node is kept alive by its consumers.

    Args:
        results: the outputs: `Result` nodes, or values, for which results with the values' names are created.
        parameters: the inputs, in order.
        sinks: nodes that are kept for their side effects; they have no consumers and are not results.
        name: the model's name.
        captures: for a body, additional parameters whose values come from the enclosing graph: the node with the
            body has them as inputs after its formal ones.

    Not thread-safe while it is changed; concurrent reads are safe.
    """

    __slots__ = ("__weakref__", "_kinds", "_order", "_order_edits", "_parameters", "_results", "_sinks", "_variables",
                 "captures", "metadata", "name", "opset_imports", "rt_info")  # fmt: skip

    captures: list[Parameter]
    metadata: dict[str, str]
    opset_imports: dict[str, int]
    """Versions of custom domains, as the file stated them."""

    def __init__(
        self,
        results: Iterable[Result | OutputLike],
        parameters: Iterable[Parameter] = (),
        sinks: Iterable[Node] = (),
        name: str = "model",
        *,
        captures: Iterable[Parameter] = (),
    ) -> None:
        self.name = name
        self._results = [r if isinstance(r, Result) else Result(r) for r in _listed(results, "results")]
        self._parameters: list[Parameter] = _listed(parameters, "parameters")
        self._sinks: list[Node] = []
        self._variables: list[Variable] = []
        self.captures = _listed(captures, "captures")
        self.metadata = {}
        self.opset_imports = {}
        self.rt_info: dict[str, Any] = {}
        self._order: list[Node] | None = None
        self._order_edits = -1
        self._kinds = _NO_KINDS
        _check_border(self)
        for sink in _listed(sinks, "sinks"):
            self.add_sink(sink)

    # -- inputs and outputs -------------------------------------------------------------------------------

    @property
    def results(self) -> list[Result]:
        """The `Result` nodes, in output order (a copy)."""
        return list(self._results)

    @property
    def parameters(self) -> list[Parameter]:
        """The `Parameter` nodes, in input order (a copy)."""
        return list(self._parameters)

    @property
    def sinks(self) -> list[Node]:
        """The sink nodes, which are kept without consumers, such as assignments; a new list."""
        return list(self._sinks)

    @property
    def variables(self) -> list[Variable]:
        """The values that requests keep between inferences (a copy of the list); see `add_variable`."""
        return list(self._variables)

    @property
    def inputs(self) -> list[Output]:
        """The output ports of the parameters."""
        return [parameter.output(0) for parameter in self._parameters]

    @property
    def outputs(self) -> list[Output]:
        """The values that the results read."""
        return [result.input_value(0) for result in self._results]

    def parameter(self, key: str | int) -> Parameter:
        """The input with this name or index. Raises `GraphError` listing the inputs."""
        return _pick(self._parameters, key, "input", self.name)

    def result(self, key: str | int) -> Result:
        """The output with this name or index. Raises `GraphError` listing the outputs."""
        return _pick(self._results, key, "output", self.name)

    def node(self, friendly_name: str) -> Node:
        """The first node with this friendly name. Linear in the number of nodes. Raises `GraphError`."""
        for node in self.ordered_nodes():
            if node.friendly_name == friendly_name:
                return node
        raise GraphError(f"model `{self.name}` has no node `{friendly_name}`")

    def add_result(self, source: OutputLike, name: str | None = None) -> Result:
        """Make a value an output of the model. Raises `GraphError` if the name is taken."""
        result = Result(as_output(source), name)
        self._edit(self._results, result, [r.friendly_name for r in self._results], "output")
        return result

    def add_parameter(self, parameter: Parameter) -> Parameter:
        """Append an input. Raises `GraphError` if the name is taken."""
        if not isinstance(parameter, Parameter):
            raise GraphError(f"an input of model `{self.name}` is a Parameter; got {parameter!r}")
        self._edit(self._parameters, parameter, [p.friendly_name for p in self._parameters], "input")
        return parameter

    def add_sink(self, sink: Node) -> None:
        """Keep a node for its side effect. Raises `GraphError` if it has consumers, or is a result or a sink."""
        if not isinstance(sink, Node) or isinstance(sink, (Parameter, Result)) or sink in self._sinks:
            raise GraphError(
                f"a sink of model `{self.name}` must be an operation that is neither output nor sink yet; got {sink!r}"
            )
        _check_sink(sink)
        sink._pinned = True
        self._sinks.append(sink)
        self._order = None

    def add_variable(self, variable: Variable) -> None:
        """Have requests keep the value of an output for an input of the next inference.

        Both become the last input and output of the model; a compiled network shows neither of them to its users.
        Raises `GraphError` if one of them does not exist, or belongs to another variable, or if they do not fit.
        """
        parameter, result = self.parameter(variable.parameter), self.result(variable.result)
        for other in self._variables:
            if other.name == variable.name:
                raise GraphError(f"model `{self.name}` already has a variable `{variable.name}`")
            if other.parameter == variable.parameter or other.result == variable.result:
                raise GraphError(
                    f"variable `{variable.name}` of model `{self.name}`: its input or its output already belongs to "
                    f"variable `{other.name}`"
                )
        variable.check(parameter.type, result.type)
        _remove(self._parameters, parameter, self.name)
        _remove(self._results, result, self.name)
        self._parameters.append(parameter)
        self._results.append(result)
        self._variables.append(variable)
        self._order = None

    def remove_variable(self, name: str) -> None:
        """Make the input and the output of a variable ordinary ones. Raises `GraphError`."""
        found = [variable for variable in self._variables if variable.name == name]
        if not found:
            names = ", ".join(f"`{variable.name}`" for variable in self._variables) or "none"
            raise GraphError(f"model `{self.name}` has no variable `{name}`; it has {names}")
        self._variables.remove(found[0])
        # Before the remaining variables' results, which stay last.
        for nodes, node in (
            (self._parameters, self.parameter(found[0].parameter)),
            (self._results, self.result(found[0].result)),
        ):
            _remove(nodes, node, self.name)
            nodes.insert(len(nodes) - len(self._variables), node)  # type: ignore[arg-type]
        self._order = None

    def remove_result(self, result: Result) -> None:
        """Drop an output; nodes that only it consumed leave the model. Raises `GraphError`."""
        self._check_unbound(result, [variable.result for variable in self._variables])
        _remove(self._results, result, self.name)
        self._release(result)

    def remove_parameter(self, parameter: Parameter) -> None:
        """Drop an input without consumers. Raises `GraphError`."""
        if parameter.is_consumed:
            raise GraphError(f"{parameter} still has consumers; rewire them before removing it")
        self._check_unbound(parameter, [variable.parameter for variable in self._variables])
        _remove(self._parameters, parameter, self.name)
        self._order = None

    def remove_sink(self, sink: Node) -> None:
        """Drop a sink; nodes that only it consumed leave the model. Raises `GraphError`."""
        _remove(self._sinks, sink, self.name)
        self._release(sink)

    # -- changes by applications; see `_editing` ------------------------------------------------------------

    def reshape(self, shapes: Mapping[str | int, ShapeLike] | ShapeLike) -> None:
        """Give inputs other shapes, static or not, before compiling: `model.reshape({"x": [8, 3, None, 224]})`.

        All other types follow: values that the model computes from shapes are taken into account, and the file's
        declarations of other values are dropped. Inputs that are not named keep their shapes. A model with one input
        takes its shape alone: `model.reshape([8, 3, 224, 224])`.

        Raises `GraphError` for an unknown input, and `TypeInferenceError`, which names the node, if the model cannot
        take such inputs; the model is then unchanged.
        """
        _editing().reshape(self, shapes)

    def set_batch(self, size: DimensionLike, axes: Mapping[str | int, int] | None = None) -> None:
        """Give the inputs another batch: `model.set_batch(8)`, or `model.set_batch("N")` for any.

        The batch is the first dimension of the first input that has dimensions, and of every other input whose first
        dimension is equal to it (the same symbol, or the same length). `axes` names the inputs that have a batch, and
        where: `{"x": 1}`.

        Raises `GraphError` if there is no batch; `TypeInferenceError`, which names the node, if the model cannot take
        the batch, or if an output would lose it because a constant in the model fixes the former one. The model is then
        unchanged.
        """
        _editing().set_batch(self, size, axes)

    def add_output(self, value: str, name: str | None = None) -> Result:
        """Make a value inside the model another output: by its tensor's name, or by the name of a node with one output.

        The output is called `name`, or like the value. Raises `GraphError` with similar names if the value does not
        exist, or if the model has an output of this name.
        """
        made: Result = _editing().add_output(self, value, name)
        return made

    def extract(self, inputs: Iterable[str] | None, outputs: Iterable[str]) -> Model:
        """The part that computes `outputs` from `inputs`, as a model of its own: `model.extract(["x"], ["conv_3"])`.

        Both name values like `add_output`; an input may be any value inside the model. None for the inputs takes this
        model's inputs that the outputs depend on. Constants share their data; variables become inputs and outputs.

        Raises `GraphError` for an unknown name, if the outputs also depend on other inputs, or not on a given one.
        """
        made: Model = _editing().extract(self, inputs, outputs)
        return made

    def make_input(self, name: str) -> Parameter:
        """Make a constant an input, so that each inference passes its value.

        It has the constant's type; lengths that the file leaves open for it as an input are also open here.
        `overridable` lists the constants that the file offers for that. Raises `GraphError` if it does not exist.
        """
        made: Parameter = _editing().make_input(self, name)
        return made

    def make_inputs(self, names: Iterable[str]) -> list[Parameter]:
        """Make several constants inputs, like `make_input` for each in turn, and infer the types that follow once.

        Raises `GraphError`, which leaves the model as it was.
        """
        made: list[Parameter] = _editing().make_inputs(self, names)
        return made

    def set_constant(self, name: str, value: ArrayLike) -> None:
        """Replace the value of a constant, which is converted to its element type, and has the same shape.

        Raises `GraphError` if the constant does not exist, or for another shape; `ModelError` if `value` is not a
        tensor, or not representable in the element type.
        """
        _editing().set_constant(self, name, value)

    def constant(self, name: str) -> Constant:
        """The constant with this name, which is in a body if only bodies read it.

        Linear in the number of nodes. Raises `GraphError`, also if bodies have different constants of this name.
        """
        found = self.constants([name])
        if not found:
            raise GraphError(f"model `{self.name}` has no constant `{name}`")
        return found[name]

    def constants(self, names: Iterable[str]) -> dict[str, Constant]:
        """The constants among these names, as `constant` finds each, by one walk over the nodes.

        Raises `GraphError` if bodies have different constants of one name.
        """
        wanted = dict.fromkeys(names)
        own = set(self._ordered())
        found: dict[str, Constant] = {}
        inner: dict[str, list[Constant]] = {}
        for node in _with_bodies(self):
            if not isinstance(node, Constant) or (name := node.output(0).name) not in wanted or name in found:
                continue
            if node in own or node.annotations.get("overridable"):
                found[name] = node
            else:
                inner.setdefault(name, []).append(node)
        for name, copies in inner.items():
            if name not in found and not all(node.shares_data(copies[0]) for node in copies):
                raise GraphError(f"bodies in model `{self.name}` have different constants `{name}`")
            found.setdefault(name, copies[0])
        return {name: found[name] for name in wanted if name in found}

    @property
    def overridable(self) -> list[str]:
        """The constants that the file (of IR version 4 or later) also lists among its inputs, by name.

        An inference may give them other values: see `ExecutableNetwork`. `make_input` and `set_constant` change them.
        """
        return list(self.overridable_constants)

    @property
    def overridable_constants(self) -> dict[str, Constant]:
        """The constants of `overridable` by name: those that `constant` finds. Linear in the number of nodes."""
        found: dict[str, Constant] = {}
        for node in _with_bodies(self):
            if node.annotations.get("overridable") and isinstance(node, Constant):
                found.setdefault(node.output(0).name, node)
        return found

    def save(self, path: str | os.PathLike[str], f16: bool = False, *, external_data: int | None = None) -> None:
        """Write the model as an ONNX file; see `engine.onnx.write_model`.

        With `f16`, weights of f32 are stored in half precision, and cast to f32 where they are read: half the size, for
        results that differ by the rounding of the weights to 11 bits. Constants beyond its range stay f32.

        Raises `ModelWriteError` if the file cannot be written, or the model cannot be expressed in ONNX.
        """
        _editing().save(self, path, f16=f16, external_data=external_data)

    # -- traversal ----------------------------------------------------------------------------------------

    def ordered_nodes(self) -> list[Node]:
        """All nodes, producers before consumers: parameters first, then depth-first from sinks and results.

        Linear; the order is cached until an edge changes. Raises `GraphError` naming the nodes of a cycle.
        """
        return list(self._ordered())

    @property
    def node_count(self) -> int:
        """The number of nodes. Raises `GraphError` naming the nodes of a cycle."""
        return len(self._ordered())

    def nodes_of(self, kinds: Collection[tuple[str, str]]) -> list[Node]:
        """The nodes of these operators, given as (domain, op type), and all nodes with bodies, like `ordered_nodes`.

        Linear in the number of these nodes as long as no edge changes.
        """
        return self._by_kind().select(kinds)

    def has_nodes_of(self, kinds: AbstractSet[tuple[str, str]]) -> bool:
        """Whether `nodes_of(kinds)` would return any node; cheaper than to ask for them."""
        return self._by_kind().has_any(kinds)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The `id` of each of `ordered_nodes`, to compare later: unlike the nodes, it keeps none of them alive."""
        return self._by_kind().ids()

    def forget_order(self) -> None:
        """Drop the cached order, which keeps all of its nodes alive until the order is asked for again.

        A rewrite that replaces many nodes calls it, so that memory is used again and the collector has less to visit.
        """
        self._order, self._kinds = None, _NO_KINDS

    def _by_kind(self) -> _Kinds:
        order = self._ordered()
        if self._kinds.order is not order:
            self._kinds = _Kinds(order)
        return self._kinds

    def _ordered(self) -> list[Node]:
        if self._order is None or self._order_edits != edits.count:
            roots: list[Node] = [*self._parameters, *self.captures, *self._sinks, *self._results]
            self._order = _topological(roots)
            self._order_edits = edits.count
        return self._order

    # -- whole-model operations ---------------------------------------------------------------------------

    def validate(self) -> bool:
        """Check the graph and infer every type that may have changed; return whether a type changed.

        Raises `GraphError` for a cycle, a duplicated input or output name, a sink with consumers, variables whose
        inputs and outputs are not the last ones, in order, or a parameter that is read but is not the model's;
        `TypeInferenceError` if a node does not accept its inputs.
        """
        _check_border(self)
        known = {*self._parameters, *self.captures}
        changed = False
        for node in self.ordered_nodes():
            if node.has_settled_types() and node.op_type != "Parameter":
                continue
            if isinstance(node, Parameter) and node not in known:
                raise GraphError(
                    f"model `{self.name}` reads {node}, which is not one of its parameters; "
                    f"add it with add_parameter, or replace it"
                )
            for source in node._sources:
                if source is not None and source.index >= len(source.node._types):
                    raise GraphError(f"{node} reads output {source.index} of {source.node}, which does not exist")
            try:
                changed |= node.infer_types()
            except TypeInferenceError as e:
                e.node = node
                raise
            except ModelError as e:
                raise TypeInferenceError(f"{node}: {e}") from e
        return changed

    def clone(self, mapping: dict[Node, Node] | None = None) -> Model:
        """A deep copy with the same names, which shares the data of constants.

        If given, `mapping` is filled with original -> copy.
        """
        copies: dict[Node, Node] = {} if mapping is None else mapping
        with paused_collector():
            for node in self.ordered_nodes():
                sources = [None if s is None else Output(copies[s.node], s.index) for s in node._sources]
                copies[node] = copy = node.clone_with_new_inputs(sources)
                copy._names = node._names
                copy.id = node.id  # generated names contain it, so that they are the same for the copy
        model = Model(
            [copies[r] for r in self._results],
            [_as(Parameter, copies[p]) for p in self._parameters],
            [copies[s] for s in self._sinks],
            self.name,
            captures=[_as(Parameter, copies[p]) for p in self.captures],
        )
        model._variables = list(self._variables)
        model.metadata = dict(self.metadata)
        model.opset_imports = dict(self.opset_imports)
        model.rt_info = dict(self.rt_info)
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model with its weights."""
        skeleton, sections = _editing().pickled(self)
        return _unpickled, (skeleton, sections)

    def to_text(self) -> str:
        """The model as readable text, one node per line; does not depend on the order in which nodes were created."""
        return model_to_text(self)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{p.friendly_name}: {p.type}" for p in self._parameters)
        outputs = ", ".join(f"{r.friendly_name}: {r.type}" for r in self._results)
        return f"<Model `{self.name}` ({inputs}) -> ({outputs})>"

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        rows: list[Sequence[object]] = [("input", p.friendly_name, p.type) for p in self._parameters]
        rows += [("output", r.friendly_name, r.type) for r in self._results]
        counts = Counter(
            node.op_type for node in self._ordered() if not isinstance(node, (Parameter, Constant, Result))
        )
        rows += [("operator", op_type, count) for op_type, count in counts.most_common()]
        return html_table(f"Model {self.name}", ("", "Name", "Type, or number"), rows)

    def _edit(self, nodes: list[Any], node: Node, taken: Sequence[str], what: str) -> None:
        if node.friendly_name in taken:
            raise GraphError(f"model `{self.name}` already has an {what} `{node.friendly_name}`")
        nodes.insert(len(nodes) - len(self._variables), node)
        self._order = None

    def _check_unbound(self, node: Node, bound: Sequence[str]) -> None:
        if node.friendly_name in bound:
            raise GraphError(f"{node} belongs to a variable of model `{self.name}`; call remove_variable first")

    def _release(self, node: Node) -> None:
        node._pinned = False
        self._order = None
        _detach(node)


class _Kinds:
    """The positions of nodes in an order, by operator."""

    __slots__ = ("_ids", "_positions", "_with_bodies", "order")

    def __init__(self, order: list[Node]) -> None:
        self.order = order
        self._positions: dict[tuple[str, str], list[int]] = {}
        self._with_bodies: list[int] = []
        self._ids: tuple[int, ...] | None = None
        for position, node in enumerate(order):
            self._positions.setdefault((node.domain, node.op_type), []).append(position)
            if node.attributes and node.has_bodies:
                self._with_bodies.append(position)

    def has_any(self, kinds: AbstractSet[tuple[str, str]]) -> bool:
        return bool(self._with_bodies) or not self._positions.keys().isdisjoint(kinds)

    def ids(self) -> tuple[int, ...]:
        if self._ids is None:
            self._ids = tuple([node.id for node in self.order])
        return self._ids

    def select(self, kinds: Collection[tuple[str, str]]) -> list[Node]:
        found = [positions for kind in kinds if (positions := self._positions.get(kind))]
        if self._with_bodies:
            found.append(self._with_bodies)
        chosen = found[0] if len(found) == 1 else sorted({position for each in found for position in each})
        return [self.order[position] for position in chosen]


_NO_KINDS: Final = _Kinds([])


def _with_bodies(model: Model) -> Iterator[Node]:
    """Constants that are inputs which nothing reads, and the nodes of a model and of its bodies at any depth."""
    yield from model.rt_info.get(UNREAD_CONSTANTS, ())
    pending = [model]
    while pending:
        for node in pending.pop()._ordered():
            yield node
            if node.attributes and node.has_bodies:
                pending += node.bodies.values()


def _unpickled(skeleton: bytes, sections: dict[str, bytes]) -> Model:
    model: Model = _editing().unpickled(skeleton, sections)
    return model


def _editing() -> Any:
    """`engine.editing`, which needs operators and passes, so that this package cannot import it: see ADR 20."""
    return importlib.import_module("engine.editing")


def _listed(nodes: Iterable[_T], what: str) -> list[_T]:
    try:
        return list(nodes)
    except TypeError:
        raise GraphError(f"the {what} of a model must be a list; got {nodes!r}") from None


def _as(kind: type[Parameter], node: Node) -> Parameter:
    assert isinstance(node, kind)
    return node


def _pick(nodes: list[_N], key: str | int, what: str, model: str) -> _N:
    if isinstance(key, int) and 0 <= key < len(nodes):
        return nodes[key]
    for node in nodes:
        if node.friendly_name == key:
            return node
    names = ", ".join(repr(node.friendly_name) for node in nodes) or "none"
    raise GraphError(f"model `{model}` has no {what} {key!r}; it has {names}")


def _remove(nodes: list[Any], node: Node, model: str) -> None:
    for position, candidate in enumerate(nodes):
        if candidate is node:
            del nodes[position]
            return
    raise GraphError(f"{node} is not in model `{model}`")


def _check_border(model: Model) -> None:
    for nodes, what in ((model._parameters, "inputs"), (model._results, "outputs")):
        names: set[str] = set()
        for node in nodes:
            if not isinstance(node, Parameter if what == "inputs" else Result):
                raise GraphError(f"the {what} of model `{model.name}` contain {node!r}")
            if node.friendly_name in names:
                raise GraphError(f"two {what} of model `{model.name}` are called `{node.friendly_name}`")
            names.add(node.friendly_name)
    for sink in model._sinks:
        _check_sink(sink)
    if model._variables:
        _check_variables(model)


def _check_variables(model: Model) -> None:
    count = len(model._variables)
    pairs = zip(model._variables, model._parameters[-count:], model._results[-count:], strict=True)
    for variable, parameter, result in pairs:
        if (parameter.friendly_name, result.friendly_name) != (variable.parameter, variable.result):
            raise GraphError(
                f"variable `{variable.name}` of model `{model.name}` pairs input `{variable.parameter}` and output "
                f"`{variable.result}`, but `{parameter.friendly_name}` and `{result.friendly_name}` are in their places"
            )


def _check_sink(sink: Node) -> None:
    if sink.is_consumed:
        raise GraphError(f"{sink} has consumers and cannot be a sink")


def _topological(roots: Iterable[Node]) -> list[Node]:
    order: list[Node] = []
    done: set[Node] = set()
    path: set[Node] = set()  # expanded but not finished: the ancestors of the current node
    append, finish = order.append, done.add
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            if node in path:
                stack.pop()
                path.discard(node)
                finish(node)
                append(node)
                continue
            path.add(node)
            for source in reversed(node._sources):
                if source is not None and source.node not in done:
                    if source.node in path:
                        raise GraphError(_describe_cycle(source.node, path))
                    stack.append(source.node)
    return order


def _describe_cycle(start: Node, path: set[Node]) -> str:
    follow: Callable[[Node], Node | None] = lambda node: next(  # noqa: E731
        (s.node for s in node._sources if s is not None and s.node in path), None
    )
    names = [str(start)]
    node = follow(start)
    while node is not None and node is not start and len(names) < 20:
        names.append(str(node))
        node = follow(node)
    return f"the graph has a cycle: {' <- '.join([*names, str(start)])}"
