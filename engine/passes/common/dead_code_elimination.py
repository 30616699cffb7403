"""`DeadCodeElimination`: removes unused parts of nodes that are in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.ir import Constant, Model, Node, Output
from engine.ops import find_op
from engine.ops.loop import LoopForm
from engine.passes.base import ModelPass
from engine.passes.runtime_info import copy_runtime_info

_SCAN_LISTS = ("scan_output_axes", "scan_output_directions")


class DeadCodeElimination(ModelPass):
    """Drops optional outputs, outputs of If branches, scan outputs of loops and captures that nothing reads.

    A node without consumers is dropped from the graph automatically. This pass removes unused parts of nodes in use:
    trailing outputs such as the mask of a Dropout or the mean of a LayerNormalization, a result of both branches of an
    If with the nodes that compute it, a value that a Loop or Scan collects, the condition that a Loop ignores, and a
    capture that a body no longer reads.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk from the results back, so that nodes read only by dropped outputs are dropped too; linear."""
        changed = False
        for node in reversed(model.ordered_nodes()):
            bodies = node.bodies
            if len(node.output_types) == 1 and not bodies:
                continue  # it is read, or a sink
            if not node.is_attached or not node.num_outputs or self.transformation_callback(node):
                continue
            if node.op_type == "Loop" and not node.domain and LoopForm.of(node).condition is None:
                changed |= _forget_condition(bodies["body"])
            for body in bodies.values():
                changed |= self.run_on_model(body)
            kept = _kept_outputs(node)
            _remove_results(node, kept)
            dead = {name: [p for p in body.captures if not p.output(0).num_consumers] for name, body in bodies.items()}
            if len(kept) < node.num_outputs or any(dead.values()):
                _rebuild(node, kept, dead)
                self.rewrites += 1
                changed = True
        return changed


def _forget_condition(body: Model) -> bool:
    """Drop the nodes for the condition in the body of a Loop that ignores it; return whether there were any."""
    result = body.results[0]
    if isinstance(result.input_value(0).node, Constant):
        return False
    result.input(0).replace_source_output(Constant(np.array(True)))
    return True


def _kept_outputs(node: Node) -> list[int]:
    """The indices of the outputs that the node keeps: read or required ones."""
    count = node.num_outputs
    read = [output.num_consumers > 0 for output in node.outputs]
    if not any(read):
        return list(range(count))  # a sink, kept for its effect
    if node.domain == "" and node.op_type == "If":
        return [index for index in range(count) if read[index]]
    if node.domain == "" and node.op_type in ("Loop", "Scan"):
        carried = _carried(node)
        return [index for index in range(count) if index < carried or read[index]]
    op = find_op(node.op_type, node.domain)
    if op is None or op.extension or node.bodies or (op.outputs and op.outputs[-1].is_variadic):
        return list(range(count))  # kernels of extensions write all outputs
    last = max(index for index in range(count) if read[index])
    return list(range(max(last + 1, op.min_outputs)))


def _carried(node: Node) -> int:
    """The number of outputs that carry state from one iteration to the next."""
    if node.op_type == "Loop":
        return LoopForm.of(node).num_carried
    if any(node.attributes.get(name) for name in _SCAN_LISTS):
        return node.num_outputs  # lists by output, which dropping one would shift
    return node.num_formal_inputs - int(node.attributes["num_scan_inputs"])


def _remove_results(node: Node, kept: list[int]) -> None:
    """Remove the results of the other outputs from the bodies, and the nodes that only they read."""
    skipped = 1 if node.op_type == "Loop" else 0  # a Loop's body gives its condition first
    for body in node.bodies.values():
        results = body.results
        for index in range(node.num_outputs):
            if index not in kept:
                body.remove_result(results[index + skipped])


def _rebuild(node: Node, kept: list[int], dead: Mapping[str, Sequence[Node]]) -> None:
    """Replace `node` by one with only these outputs and without these captures."""
    inputs: list[Output | None] = node.input_values[: node.num_formal_inputs]
    for name, body in node.bodies.items():
        values = node.captured_values(name)
        inputs += [value for value, p in zip(values, body.captures, strict=True) if p not in dead[name]]
    for name, body in node.bodies.items():
        body.captures = [capture for capture in body.captures if capture not in dead[name]]
    new = Node(
        node.op_type,
        inputs,
        node.attributes,
        domain=node.domain,
        num_outputs=len(kept),
        types=[node.output(index).type for index in kept],
        friendly_name=node.friendly_name if node.has_own_name else None,
    )
    new.settle_types()
    copy_runtime_info(node, new)
    for position, index in enumerate(kept):
        new.output(position).name = node.output(index).name
        node.output(index).replace(new.output(position))
