"""What the device answers to a query."""

from __future__ import annotations

from engine.ir import Model
from engine.passes.runtime_info import FUSED_NAMES, is_operation
from engine.plugin_api import QueryResult, Support
from engine_opencl.lowering import refusal


def query(model: Model, graph: Model) -> QueryResult:
    """Answer for the operations of `model`, of which `graph` is the transformed copy.

    An operation runs as what it became part of; what was folded away runs nowhere, which is native enough.
    """
    named = {node.friendly_name: node for node in model.ordered_nodes() if is_operation(node)}
    answers = dict.fromkeys(named, Support.native())
    atoms: list[frozenset[str]] = []
    for node in graph.ordered_nodes():
        if not is_operation(node):
            continue
        names = frozenset({*node.rt_info.get(FUSED_NAMES, ()), node.friendly_name} & named.keys())
        why = refusal(node)
        if why is not None:
            answers |= dict.fromkeys(names, Support.refused(why.cause, why.reason))
        elif len(names) > 1 and any(refusal(named[name]) is not None for name in names):
            atoms.append(names)
    return QueryResult(answers, tuple(_disjoint(atoms)))


def _disjoint(atoms: list[frozenset[str]]) -> list[frozenset[str]]:
    joined: list[frozenset[str]] = []
    for atom in atoms:
        apart = [group for group in joined if not group & atom]
        joined = [*apart, atom.union(*(group for group in joined if group & atom))]
    return joined
