"""How a network runs: the value of EXECUTION_SUMMARY, and what a user is warned of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.properties import EXECUTION_DEVICES, EXECUTION_PRECISION, EXECUTION_SUMMARY
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """The nodes of a network's graph, and those among them that the reference evaluator runs.

    `work` and `reference_work` estimate the time of evaluating them, in units of about a nanosecond.
    """

    nodes: int
    reference_nodes: int
    work: int
    reference_work: int


class Summarised(Protocol):
    """The members of a network that a summary needs."""

    remarks: list[str]

    @property
    def plugin(self) -> Any:
        """Its plugin, which has a name."""

    def get_metric(self, name: str) -> Any:
        """The value of a metric of the network."""

    def parts(self) -> Mapping[str, Summarised]:
        """The networks on which it runs."""

    def node_counts(self) -> NodeCounts | None:
        """The counts of its own nodes."""


def summary_of(network: Summarised) -> dict[str, Any]:
    """The value of EXECUTION_SUMMARY; for a network that runs on others, it has their summaries, and their sums."""
    parts = {name: part.get_metric(EXECUTION_SUMMARY.name) for name, part in network.parts().items()}
    precisions = dict.fromkeys(part["precision"] for part in parts.values() if part["precision"])
    precision = ", ".join(precisions)
    if EXECUTION_PRECISION.name in network.get_metric("SUPPORTED_METRICS"):
        precision = network.get_metric(EXECUTION_PRECISION.name)
    counts = network.node_counts() or _sum_of(list(parts.values()))
    return {
        "device": ", ".join(network.get_metric(EXECUTION_DEVICES.name)),
        "precision": precision,
        "fallbacks": remarks_of(network),
        "nodes": counts.nodes,
        "reference_nodes": counts.reference_nodes,
        "reference_share": counts.reference_nodes / max(1, counts.nodes),
        "work": counts.work,
        "reference_work": counts.reference_work,
        "reference_work_share": counts.reference_work / max(1, counts.work),
        "parts": parts,
    }


def remarks_of(network: Summarised) -> list[str]:
    """The remarks for the user about a network and the networks that it runs on, one sentence each."""
    told: dict[tuple[str, str], list[str]] = {}
    for name, part in network.parts().items():
        for remark in remarks_of(part):
            told.setdefault((part.plugin.name, remark), []).append(name)
    return [
        *network.remarks,
        *(f"{' and '.join(names)} on {device}: {remark}" for (device, remark), names in told.items()),
    ]


def _sum_of(parts: list[Mapping[str, Any]]) -> NodeCounts:
    names = ("nodes", "reference_nodes", "work", "reference_work")
    return NodeCounts(*(sum(part[name] for part in parts) for name in names))
