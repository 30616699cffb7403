"""`make_input` and `set_constant`: other values for what a file fixes, per inference or for good."""

from __future__ import annotations

from typing import Final

from numpy.typing import ArrayLike

from engine.editing.extraction import find_value
from engine.editing.reshape import reshape
from engine.errors import GraphError
from engine.ir import UNREAD_CONSTANTS, Constant, Model, Node, Output, Parameter, TensorType

_MAX_SCALES: Final = 8


def make_input(model: Model, name: str) -> Parameter:
    """See `Model.make_input`."""
    constant = _constant(model, name)
    parameter = Parameter(constant.input_type, friendly_name=name)
    parameter.output(0).name = name
    model.add_parameter(parameter)
    replace_everywhere(model, constant, parameter.output(0))
    _replace_unread(model, constant, ())
    if _may_decide(constant) or parameter.type != constant.output(0).type:  # types that follow from the former value
        assert isinstance(parameter.type, TensorType)
        reshape(model, {name: parameter.type.shape})
    return parameter


def set_constant(model: Model, name: str, value: ArrayLike) -> None:
    """See `Model.set_constant`."""
    old = _constant(model, name)
    new = Constant(value, old.element_type, friendly_name=old.friendly_name if old.has_own_name else None)
    if new.shape != old.shape:
        raise GraphError(f"model `{model.name}`: constant `{name}` has shape {list(old.shape)}; got {list(new.shape)}")
    new.output(0).name = old.output(0).name
    new.rt_info.update(old.annotations)
    targets = old.output(0).target_inputs
    replace_everywhere(model, old, new.output(0))
    _replace_unread(model, old, (new,))
    for target in targets:
        target.node.forget_inferred_types()  # the value may decide a shape


def replace_everywhere(graph: Model, constant: Constant, value: Output) -> None:
    """Make all nodes read `value` instead of `constant`, also those in bodies, which have copies of small constants."""
    for node in graph.ordered_nodes():
        is_copy = isinstance(node, Constant) and node.friendly_name == constant.friendly_name
        if is_copy and node.shares_data(constant):  # type: ignore[attr-defined]
            node.output(0).replace(value)
        added: dict[str, Parameter] = {}
        for name, body in node.bodies.items():
            capture = Parameter(value.type, friendly_name=constant.friendly_name)
            replace_everywhere(body, constant, capture.output(0))
            if capture.is_consumed:
                added[name] = capture
        if added:
            _add_captures(graph, node, added, value)


def _replace_unread(model: Model, constant: Constant, by: tuple[Constant, ...]) -> None:
    """Replace a constant that no node reads, so that the model itself keeps it."""
    unread = model.rt_info.get(UNREAD_CONSTANTS, ())
    if constant not in unread:
        return
    position = unread.index(constant)
    kept = (*unread[:position], *by, *unread[position + 1 :])  # a new tuple, since the old one belongs to clones, too
    model.rt_info.pop(UNREAD_CONSTANTS)
    if kept:
        model.rt_info[UNREAD_CONSTANTS] = kept


def _add_captures(graph: Model, node: Node, added: dict[str, Parameter], value: Output) -> None:
    """Replace `node` by one whose bodies capture `value`, too."""
    inputs: list[Output | None] = node.input_values[: node.num_formal_inputs]
    for name in node.bodies:
        inputs += node.captured_values(name)
        if name in added:
            inputs.append(value)
    for name, body in node.bodies.items():
        if name in added:
            body.captures = [*body.captures, added[name]]
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


def _constant(model: Model, name: str) -> Constant:
    try:
        return model.constant(name)
    except GraphError:
        node = find_value(model, name).node  # by the name of an output or of a node
    if not isinstance(node, Constant):
        raise GraphError(f"`{name}` of model `{model.name}` is computed by {node}, so it is not a constant")
    return node
