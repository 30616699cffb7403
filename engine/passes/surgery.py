"""Changing graphs: replacing and eliminating nodes while preserving names and annotations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from engine.errors import GraphError, ModelError
from engine.ir import Node, Output, OutputLike, as_output
from engine.passes.runtime_info import copy_runtime_info


def replace_node(old: Node, new: Node | Sequence[OutputLike]) -> None:
    """Make every consumer of `old` read the same port of `new`, which drops `old` from the graph.

    `new` is a node with as many outputs as `old`, or one value for each output of `old`. Names and rt_info are the
    caller's responsibility: see `copy_runtime_info`. Raises `GraphError` before anything is changed: for a different
    number of outputs, for a new node that reads the old one, and for Results and sinks of the model.
    """
    if old.is_pinned and old.op_type != "Parameter":
        raise GraphError(
            f"cannot replace {old}, which is a Result or a sink of the model; "
            "use model.add_result, add_sink, remove_result and remove_sink"
        )
    if isinstance(new, Node):
        if len(new.output_types) == len(old.output_types) == 1:
            old.replace_output(0, Output(new, 0))
            return
        outputs = new.outputs
    else:
        outputs = [as_output(value) for value in new]
    if len(outputs) != old.num_outputs:
        raise GraphError(
            f"cannot replace {old} with {old.num_outputs} outputs by {_text(new)} with {len(outputs)}; "
            "give one value for each output"
        )
    for index, output in enumerate(outputs):
        _check_replacement(old, index, output)
    for index, output in enumerate(outputs):
        old.replace_output(index, output)


def _check_replacement(old: Node, index: int, new: Output) -> None:
    if new.node is old:
        if new.index != index:
            raise GraphError(f"cannot replace output {index} of {old} by {new}, another output of the same node")
    elif any(source is not None and source.node is old for source in new.node.sources):
        raise GraphError(
            f"cannot replace {old} by {new.node}, which reads it: the graph would have a cycle; "
            "to insert a node, call insert_after, or replace the source of each of the other consumers"
        )


def _text(new: Node | Sequence[OutputLike]) -> str:
    return str(new) if isinstance(new, Node) else "values"


def replace_output_update_name(output: Output, replacement: Output) -> bool:
    """Eliminate the node of `output`: its consumers read `replacement`, whose node takes over name and rt_info.

    The friendly name is copied if `output` is a network output, whose name is visible to users. Returns False and
    changes nothing if both names cannot be kept: `replacement` is a network input or a constant, feeds another network
    output, or is one of several outputs of its node.
    """
    node, source = output.node, replacement.node
    feeds_result = _feeds_result(output)
    if feeds_result and (
        source.op_type in ("Parameter", "Constant") or _feeds_result(replacement) or source.num_outputs != 1
    ):
        return False
    output.replace(replacement)
    if feeds_result and node.has_own_name:
        source.friendly_name = node.friendly_name
    if source.op_type != "Parameter":
        copy_runtime_info([source, node], source)
    return True


def _feeds_result(output: Output) -> bool:
    return any(target.node.op_type == "Result" for target in output.target_inputs)


def insert_after(output: Output, node: Node) -> None:
    """Put `node`, which reads `output`, between `output` and its other consumers.

    Consumers from which `node` itself is computed keep reading `output`. Raises `GraphError` if `node` has several
    outputs or does not depend on `output`. Walks up from `node` as far as `output`.
    """
    replacement = as_output(node)
    above = _above(node, output.node)
    targets = output.target_inputs
    if not any(target.node in above for target in targets):
        raise GraphError(f"cannot insert {node} after {output}: the node does not read this output")
    for target in targets:
        if target.node not in above:
            target.replace_source_output(replacement)


def infer_again(node: Node) -> None:
    """Infer the types of `node` after a change; an error is left to the validation of the model.

    In a branch that cannot run it is not an error of the model; only the validation of the node with the branch decides
    this.
    """
    with suppress(ModelError):
        node.infer_types()


def _above(node: Node, end: Node) -> set[Node]:
    """`node` and all nodes that it is computed from, without `end` and nodes that only `end` depends on."""
    seen = {node}
    stack = [node]
    while stack:
        for source in stack.pop().sources:
            if source is not None and source.node is not end and source.node not in seen:
                seen.add(source.node)
                stack.append(source.node)
    return seen
