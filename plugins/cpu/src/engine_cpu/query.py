"""What the device answers to a query: how each operation of the user's model would run."""

from __future__ import annotations

from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, Result, TensorType
from engine.ops.reference import compile_node
from engine.passes.runtime_info import FUSED_NAMES
from engine.plugin_api import QueryResult, Support, SupportLevel
from engine_cpu.lowering import Refusal, refusal
from engine_cpu.lowering.checks import SHAPE_SOURCES


def query(model: Model, graph: Model, *, allow_reference: bool) -> QueryResult:
    """Answer for the operations of `model`, of which `graph` is the transformed copy.

    An operation runs as what it became part of; what was folded away runs nowhere, which is native enough. Operations
    that became one are an atom where one of them alone would not run as well: what is joined only to be faster may
    be separated.
    """
    named = {n.friendly_name: n for n in model.ordered_nodes() if not _is_border(n)}
    operations = named.keys()
    answers = dict.fromkeys(operations, Support.native())
    atoms = []
    reasons = reference_reasons(graph)
    for node in graph.ordered_nodes():
        if _is_border(node):
            continue
        names = (set(node.rt_info.get(FUSED_NAMES, ())) | {node.friendly_name}) & operations
        support = _support(node, reasons.get(node), allow_reference)
        answers |= dict.fromkeys(names, support)
        if len(names) > 1 and any(_is_worse_alone(named[name], support, allow_reference) for name in names):
            atoms.append(frozenset(names))
    return QueryResult(answers, _disjoint(atoms))


def reference_reasons(graph: Model) -> dict[Node, Refusal]:
    """The operations of a transformed graph that run on the reference evaluator, and why."""
    known: set[Node] = set()  # what becomes a constant once all lengths are known, and so disappears
    reasons = {}
    for node in graph.ordered_nodes():
        sources = [value.node for value in node.input_values if value is not None]
        is_shape = node.op_type in SHAPE_SOURCES and not node.domain
        if isinstance(node, Constant) or is_shape or (sources and not node.bodies and known.issuperset(sources)):
            known.add(node)
        elif not _is_border(node) and (why := _reference_reason(node)) is not None:
            reasons[node] = why
    return reasons


def _reference_reason(node: Node) -> Refusal | None:
    for value in (*node.input_values, *node.outputs):
        if value is not None and not isinstance(value.type, TensorType):
            return Refusal("element type", f"{value.name} is {value.type}; kernels take tensors")
    return refusal(node)


def _is_worse_alone(node: Node, together: Support, allow_reference: bool) -> bool:
    """Whether an operation of the user's model would not run as it does as part of something larger."""
    alone = _support(node, _reference_reason(node), allow_reference)
    return alone.level is not together.level and alone.level is not SupportLevel.NATIVE


def _support(node: Node, why: Refusal | None, allow_reference: bool) -> Support:
    if why is None:
        return Support.native()
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
