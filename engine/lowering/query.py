"""Query answers for the user's model, derived from the decisions for the transformed one."""

from __future__ import annotations

from collections.abc import Callable

from engine.ir import Model, Node
from engine.lowering.decisions import Decisions
from engine.lowering.prepare import prepare
from engine.lowering.refusal import Refusal
from engine.lowering.table import LoweringT, LoweringTable
from engine.passes import PassPipeline
from engine.passes.runtime_info import FUSED_NAMES, is_operation
from engine.plugin_api import QueryResult, Support, SupportLevel


def query(
    model: Model,
    table: LoweringTable[LoweringT],
    passes: PassPipeline | None = None,
    without_kernel: Callable[[Node, Refusal], Support] | None = None,
) -> QueryResult:
    """The support of the operations of `model`, as `prepare(model, table, passes)` decides it.

    `without_kernel` gives the support of an operation without a kernel; by default it is refused.
    """
    prepared, alone = prepare(model, table, passes, keep_names=True), Decisions(table)
    refusals, answer = prepared.refusals(), without_kernel or _refused

    def support(node: Node, why: Refusal | None) -> Support:
        return Support.native() if why is None else answer(node, why)

    return answer_query(
        model,
        prepared.graph,
        lambda node: support(node, refusals.get(node)),
        lambda node: support(node, alone.refusal(node)),
    )


def _refused(node: Node, why: Refusal) -> Support:
    return Support.refused(why.cause, why.reason)


def answer_query(
    model: Model, graph: Model, support: Callable[[Node], Support], alone: Callable[[Node], Support] | None = None
) -> QueryResult:
    """The support of the operations of `model`; `graph` is its copy, transformed by the device's passes.

    `support` gives the support of an operation of `graph`, and `alone` (default: `support`) that of a single operation
    of `model`. An operation has the support of the one that it was fused into; folded operations count as native.
    Operations that were fused into one are an atom if some of them would run worse alone: those fused only for speed
    may be separated.
    """
    named = {node.friendly_name: node for node in model.ordered_nodes() if is_operation(node)}
    answers = dict.fromkeys(named, Support.native())
    atoms = []
    for node in graph.ordered_nodes():
        if not is_operation(node):
            continue
        names = {*node.rt_info.get(FUSED_NAMES, ()), node.friendly_name} & named.keys()
        together = support(node)
        answers |= dict.fromkeys(names, together)
        if len(names) > 1 and any(_is_worse((alone or support)(named[name]), together) for name in names):
            atoms.append(names)
    return QueryResult(answers, _disjoint(atoms))


def _is_worse(alone: Support, together: Support) -> bool:
    rank = {SupportLevel.NATIVE: 2, SupportLevel.REFERENCE: 1, SupportLevel.REFUSED: 0}
    return rank[alone.level] < rank[together.level]


def _disjoint(atoms: list[set[str]]) -> tuple[frozenset[str], ...]:
    """Merge sets that share a name."""
    joined: list[set[str]] = []
    for atom in atoms:
        apart = [group for group in joined if not group & atom]
        joined = [*apart, atom.union(*(group for group in joined if group & atom))]
    return tuple(frozenset(group) for group in joined)
