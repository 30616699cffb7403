"""What the device answers to a query: how each operation of the user's model would run."""

from __future__ import annotations

from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, Result, TensorType
from engine.ops.reference import compile_node
from engine.passes.runtime_info import FUSED_NAMES
from engine.plugin_api import QueryResult, Support
from engine_cpu.lowering import Refusal, refusal
from engine_cpu.lowering.checks import is_known_when_bound


def query(model: Model, graph: Model, *, allow_reference: bool) -> QueryResult:
    """Answer for the operations of `model`, of which `graph` is the transformed copy.

    An operation runs as what it became part of; what was folded away runs nowhere, which is native enough.
    """
    operations = {n.friendly_name for n in model.ordered_nodes() if not _is_border(n)}
    answers = dict.fromkeys(operations, Support.native())
    atoms = []
    for node in graph.ordered_nodes():
        if _is_border(node):
            continue
        names = (set(node.rt_info.get(FUSED_NAMES, ())) | {node.friendly_name}) & operations
        if (why := reference_reason(node)) is not None:
            answers |= dict.fromkeys(names, _support(node, why, allow_reference))
        if len(names) > 1:
            atoms.append(frozenset(names))
    return QueryResult(answers, _disjoint(atoms))


def reference_reason(node: Node) -> Refusal | None:
    """Why `node` would run on the reference evaluator; None where it runs natively or disappears."""
    if is_known_when_bound_all(node):
        return None
    for value in (*node.input_values, *node.outputs):
        if value is not None and not isinstance(value.type, TensorType):
            return Refusal("element type", f"{value.name} is {value.type}; kernels take tensors")
    return refusal(node)


def is_known_when_bound_all(node: Node) -> bool:
    """True for a node that is a constant once all lengths are known."""
    return all(is_known_when_bound(value) for value in node.outputs) and bool(node.num_outputs)


def _support(node: Node, why: Refusal, allow_reference: bool) -> Support:
    if not allow_reference:
        return Support.refused(why.cause, f"{why.reason}; ALLOW_REFERENCE is off")
    try:
        compile_node(node)
    except UnsupportedError as e:
        return Support.refused(why.cause, f"{why.reason}; and {e}")
    return Support.reference(why.cause, why.reason)


def _is_border(node: Node) -> bool:
    return isinstance(node, (Parameter, Constant, Result))


def _disjoint(atoms: list[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Sets that share a node belong together."""
    joined: list[set[str]] = []
    for atom in atoms:
        overlapping = [group for group in joined if group & atom]
        joined = [group for group in joined if not group & atom]
        joined.append(set(atom).union(*overlapping))
    return tuple(frozenset(group) for group in joined)
