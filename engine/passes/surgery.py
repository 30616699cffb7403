"""Changing graphs: replacing and eliminating nodes by the rules that keep names and annotations."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import GraphError
from engine.ir import Node, Output, OutputLike, as_output
from engine.passes.runtime_info import copy_runtime_info


def replace_node(old: Node, new: Node | Sequence[OutputLike]) -> None:
    """Let every consumer of `old` read the same port of `new`; `old` then leaves the graph by itself.

    `new` is a node with as many outputs as `old`, or one value for each output of `old`. Names and rt_info are
    the caller's: see `copy_runtime_info`. Raises `GraphError` before anything is changed.
    """
    if isinstance(new, Node):
        if new.num_outputs == old.num_outputs == 1:
            Output(old, 0).replace(Output(new, 0))
            return
        outputs = new.outputs
    else:
        outputs = [as_output(value) for value in new]
    if len(outputs) != old.num_outputs:
        raise GraphError(
            f"cannot replace {old} with {old.num_outputs} outputs by {new} with {len(outputs)}; "
            "give one value for each output"
        )
    for output in outputs:
        if output.node is not old and any(s is not None and s.node is old for s in output.node.input_values):
            raise GraphError(
                f"cannot replace {old} by {output.node}, which reads it: the graph would have a cycle; "
                "to insert a node, replace the source of each of the other consumers"
            )
    for index, output in enumerate(outputs):
        Output(old, index).replace(output)


def replace_output_update_name(output: Output, replacement: Output) -> bool:
    """Eliminate the node of `output`: its consumers read `replacement`, whose node takes over name and rt_info.

    The friendly name moves where `output` feeds a result of the model, so that the network output keeps the name
    of the layer that users know; a parameter keeps its own. Returns False, changing nothing, where `replacement`
    is itself a network input or already feeds another network output: both names cannot be kept.
    """
    feeds_result = any(target.node.op_type == "Result" for target in output.target_inputs)
    source = replacement.node
    if feeds_result:
        shared = any(target.node.op_type == "Result" for target in replacement.target_inputs)
        if source.op_type in ("Parameter", "Constant") or shared or source.num_outputs != 1:
            return False
        source.friendly_name = output.node.friendly_name
    if source.op_type != "Parameter":
        copy_runtime_info([source, output.node], source)
    output.replace(replacement)
    return True


def insert_after(output: Output, node: Node) -> None:
    """Put `node`, which reads `output`, between `output` and its other consumers.

    `node` needs one output. Raises `GraphError` where it has several.
    """
    replacement = as_output(node)
    for target in output.target_inputs:
        if target.node is not node:
            target.replace_source_output(replacement)
