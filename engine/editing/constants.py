"""`make_inputs` and `set_constant`: other values for constants of a file, per inference or permanently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from numpy.typing import ArrayLike

from engine.editing.extraction import find_value
from engine.editing.reshape import reshape
from engine.errors import GraphError
from engine.ir import UNREAD_CONSTANTS, Constant, Model, Node, Output, Parameter, PartialShape, TensorType

_MAX_SCALES: Final = 8


def make_inputs(model: Model, names: Iterable[str]) -> list[Parameter]:
    """The implementation of `Model.make_inputs`, which documents it."""
    constants = _constants(model, names)
    taken = {parameter.friendly_name for parameter in model.parameters}
    if again := [name for name in constants if name in taken]:
        raise GraphError(f"model `{model.name}` already has an input `{again[0]}`")
    names_of: dict[Constant, str] = {}
    for name, constant in constants.items():
        if constant in names_of:
            raise GraphError(
                f"model `{model.name}`: `{names_of[constant]}` and `{name}` are one constant; name it once"
            )
        names_of[constant] = name
    made = {constant: Parameter(constant.input_type, friendly_name=name) for constant, name in names_of.items()}
    for parameter in made.values():
        parameter.output(0).name = parameter.friendly_name
        model.add_parameter(parameter)
    _replace(model, {constant: parameter.output(0) for constant, parameter in made.items()})
    decisive: dict[str | int, PartialShape] = {}
    for constant, parameter in made.items():
        assert isinstance(parameter.type, TensorType)
        if _may_decide(constant) or parameter.type != constant.output(0).type:
            decisive[parameter.friendly_name] = parameter.type.shape
    if decisive:  # types may follow from the former values
        reshape(model, decisive)
    return list(made.values())


def make_input(model: Model, name: str) -> Parameter:
    """The implementation of `Model.make_input`, which documents it."""
    return make_inputs(model, [name])[0]


def set_constant(model: Model, name: str, value: ArrayLike) -> None:
    """The implementation of `Model.set_constant`, which documents it."""
    old = _constants(model, [name])[name]
    new = Constant(value, old.element_type, friendly_name=old.friendly_name if old.has_own_name else None)
    if new.shape != old.shape:
        raise GraphError(f"model `{model.name}`: constant `{name}` has shape {list(old.shape)}; got {list(new.shape)}")
    new.output(0).name = old.output(0).name
    new.rt_info.update(old.annotations)
    targets = old.output(0).target_inputs
    _replace(model, {old: new.output(0)})
    for target in targets:
        target.node.forget_inferred_types()  # the value may decide a shape


def _replace(model: Model, values: Mapping[Constant, Output]) -> None:
    """Make all nodes read `values` instead of the constants; those that no node reads leave the model, or are replaced
    by the constant that has the new value."""
    by_name: dict[str, list[Constant]] = {}
    for constant in values:
        by_name.setdefault(constant.friendly_name, []).append(constant)
    _replace_in(model, by_name, values.__getitem__)
    unread = model.rt_info.pop(UNREAD_CONSTANTS, ())
    kept = [values[each].node if each in values else each for each in unread]
    if left := tuple(each for each in kept if isinstance(each, Constant)):
        model.rt_info[UNREAD_CONSTANTS] = left  # another tuple, since the old one also belongs to clones


def _replace_in(graph: Model, by_name: Mapping[str, list[Constant]], value_of: Callable[[Constant], Output]) -> None:
    """Replace constants, by their friendly names, in a graph and its bodies, which have copies of small ones."""
    for node in graph.ordered_nodes():
        if isinstance(node, Constant):
            for constant in by_name.get(node.friendly_name, ()):
                if node.shares_data(constant):
                    node.output(0).replace(value_of(constant))
                    break
        added: dict[str, dict[Constant, Parameter]] = {}
        for name, body in node.bodies.items():
            captures = _Captures(value_of)
            _replace_in(body, by_name, captures.value)
            if captures.made:
                added[name] = captures.made
        if added:
            _add_captures(graph, node, added, value_of)


class _Captures:
    """The values that replace constants and that a body captures: the ones that it reads."""

    __slots__ = ("_outer", "made")

    def __init__(self, outer: Callable[[Constant], Output]) -> None:
        self._outer = outer
        self.made: dict[Constant, Parameter] = {}

    def value(self, constant: Constant) -> Output:
        """The value inside the body."""
        if constant not in self.made:
            self.made[constant] = Parameter(self._outer(constant).type, friendly_name=constant.friendly_name)
        return self.made[constant].output(0)


def _add_captures(
    graph: Model,
    node: Node,
    added: Mapping[str, Mapping[Constant, Parameter]],
    value_of: Callable[[Constant], Output],
) -> None:
    """Replace `node` by one whose bodies capture further values."""
    inputs: list[Output | None] = node.input_values[: node.num_formal_inputs]
    for name in node.bodies:
        inputs += [*node.captured_values(name), *map(value_of, added.get(name, ()))]
    for name, body in node.bodies.items():
        body.captures = [*body.captures, *added.get(name, {}).values()]
    new = Node(
        node.op_type, inputs, node.attributes, domain=node.domain, num_outputs=node.num_outputs,
        types=node.output_types, friendly_name=node.friendly_name if node.has_own_name else None,
    )  # fmt: skip
    new.rt_info.update(node.annotations)
    new.output_names = node.output_names
    if node in graph.sinks:
        graph.remove_sink(node)
        graph.add_sink(new)
    for index in range(node.num_outputs):
        node.output(index).replace(new.output(index))


def _may_decide(constant: Constant) -> bool:
    """Whether types may follow from the value: of a shape, axes, or the scales of a Resize."""
    return len(constant.shape) < 2 and (constant.element_type.is_integral or constant.data.size <= _MAX_SCALES)


def _constants(model: Model, names: Iterable[str]) -> dict[str, Constant]:
    """The constants with these names; a name may also name an output or a node."""
    wanted = list(dict.fromkeys(names))
    found = model.constants(wanted)
    return {name: found[name] if name in found else _constant_behind(model, name) for name in wanted}


def _constant_behind(model: Model, name: str) -> Constant:
    node = find_value(model, name).node
    if not isinstance(node, Constant):
        raise GraphError(f"`{name}` of model `{model.name}` is computed by {node}, so it is not a constant")
    return node
