"""`add_output` and `extract`: values inside a model as its outputs, and as the inputs of a part of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from engine.errors import GraphError
from engine.ir import Constant, Model, Node, Output, Parameter, Result
from engine.startup import paused_collector


def add_output(model: Model, value: str, name: str | None = None) -> Result:
    """The implementation of `Model.add_output`, which documents it."""
    return model.add_result(find_value(model, value), value if name is None else name)


def extract(model: Model, inputs: Iterable[str] | None, outputs: Iterable[str]) -> Model:
    """The implementation of `Model.extract`, which documents it."""
    ends = {name: find_value(model, name) for name in _names(outputs, "outputs")}
    if not ends:
        raise GraphError(f"a part of model `{model.name}` needs an output; outputs is empty")
    starts = {} if inputs is None else {name: find_value(model, name) for name in _names(inputs, "inputs")}
    copies: dict[Output, Output] = {}
    parameters: list[Parameter] = []
    for name, value in starts.items():
        parameter = Parameter(value.type, friendly_name=name)
        parameter.output(0).name = name
        copies[value] = parameter.output(0)
        parameters.append(parameter)
    with paused_collector():
        order = _above(ends.values(), set(copies))
        if inputs is not None:
            _require_inputs(model, order, ends)
        for node in order:
            sources = [None if source is None else copies[source] for source in node.sources]
            copy = node.clone_with_new_inputs(sources)
            copy.output_names, copy.id = node.output_names, node.id
            copies |= {old: new for old, new in zip(node.outputs, copy.outputs, strict=True) if old not in copies}
            if isinstance(copy, Parameter):
                parameters.append(copy)
    unread = [name for name, value in starts.items() if not copies[value].num_consumers and value not in ends.values()]
    if unread:
        raise GraphError(
            f"model `{model.name}`: outputs {_listed(ends)} do not depend on `{unread[0]}`; drop it from the inputs"
        )
    part = Model([Result(copies[value], name) for name, value in ends.items()], parameters, name=model.name)
    part.opset_imports = dict(model.opset_imports)
    part.rt_info = dict(model.rt_info)
    return part


def find_value(model: Model, name: str) -> Output:
    """The value of this name in the main graph: of a tensor, an output, or a node with one output.

    Raises `GraphError` with names that are similar.
    """
    for result in model.results:
        if result.friendly_name == name:
            return result.input_value(0)
    nodes = [node for node in model.ordered_nodes() if not isinstance(node, Result)]
    for node in nodes:
        for value in node.outputs:
            if value.name == name:
                return value
    for node in nodes:
        if node.friendly_name == name and node.num_outputs == 1:
            return node.output(0)
    names = [value.name for node in nodes if not isinstance(node, Constant) for value in node.outputs]
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"; did you mean {_listed(close)}?" if close else "; `print(model)` lists all values"
    raise GraphError(f"model `{model.name}` has no value {name!r}{hint}")


def _names(names: Iterable[str], what: str) -> list[str]:
    if isinstance(names, str):
        names = [names]
    found = list(names)
    if repeated := [name for name in found if found.count(name) > 1]:
        raise GraphError(f"{what} lists `{repeated[0]}` twice")
    return found


def _above(ends: Iterable[Output], known: set[Output]) -> list[Node]:
    """The nodes that compute `ends` from the values in `known`, producers first."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(value.node, False) for value in ends if value not in known]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(s.node, False) for s in node.sources if s is not None and s not in known and s.node not in seen]
    return order


def _require_inputs(model: Model, order: Iterable[Node], ends: Iterable[str]) -> None:
    missing = [node.friendly_name for node in order if isinstance(node, Parameter)]
    if missing:
        raise GraphError(
            f"model `{model.name}`: outputs {_listed(ends)} also depend on {_listed(missing)}; add it to the inputs"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
