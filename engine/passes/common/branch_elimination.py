"""`BranchElimination`: an If whose condition is known leaves the graph; the nodes of one branch take its place."""

from __future__ import annotations

import numpy as np

from engine.ir import Constant, Model, Node, Output, Parameter, Result
from engine.passes.base import ModelPass
from engine.passes.folding import MAX_OUTPUT_BYTES, constant_fold
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node


class BranchElimination(ModelPass):
    """Replaces an If with a constant condition by the nodes of the branch that it would run, also in bodies.

    PyTorch's older exporter writes such an If for `squeeze` and `scatter_reduce`, with branches of different ranks, so
    that no type after it is known.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk; an If within the chosen branch is also replaced."""
        changed = False
        waiting = [node for node in model.ordered_nodes() if node.has_bodies]
        while waiting:
            node = waiting.pop()
            changed |= self.run_on_bodies(node)
            branch = taken_branch(node)
            if branch is None or self.transformation_callback(node):
                continue
            waiting += [inner for inner in _inline(node, branch) if inner.has_bodies]
            self.rewrites += 1
            changed = True
        return changed


def taken_branch(node: Node) -> str | None:
    """The branch that replaces an If; None if that is not known, or has nodes that are there for an effect."""
    if (node.op_type, node.domain) != ("If", "") or not node.is_attached or node.is_pinned:
        return None
    condition = node.input_value(0).node
    if not isinstance(condition, Constant) or condition.data.size != 1:
        return None
    branch = "then_branch" if bool(np.reshape(condition.data, -1)[0]) else "else_branch"
    body = node.bodies[branch]
    return None if body.sinks or body.variables else branch


def _inline(node: Node, branch: str) -> list[Node]:
    """Put copies of a branch's nodes in place of `node`; return them."""
    body = node.bodies[branch]
    values: dict[Output, Output] = {
        capture.output(0): value for capture, value in zip(body.captures, node.captured_values(branch), strict=True)
    }
    copies = []
    for inner in body.ordered_nodes():
        if isinstance(inner, (Parameter, Result)):
            continue
        copy = inner.clone_with_new_inputs([None if value is None else values[value] for value in inner.input_values])
        copy.output_names = inner.output_names
        folded = constant_fold(copy, MAX_OUTPUT_BYTES)
        values |= dict(zip(inner.outputs, folded or copy.outputs, strict=True))
        copies += [] if folded else [copy]
    # The name of the If's output may be a network output's, and the branch may only pass a value on.
    ends = [Node("Identity", [values[result.input_value(0)]]) for result in body.results]
    if len(ends) == 1 and node.has_own_name:
        ends[0].friendly_name = node.friendly_name
    copy_runtime_info(node, [copy for copy in copies if not isinstance(copy, Constant)] + ends)
    replace_node(node, [(constant_fold(end) or end.outputs)[0] for end in ends])
    return copies
