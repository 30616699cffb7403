"""The report: subgraphs, transfers between them, refusals, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class PlacedSubgraph:
    """A part of a model that one device runs as a whole.

    Attributes:
        index: its number; a subgraph depends only on lower ones.
        device: the device string.
        nodes: friendly names, in an order in which they can run.
        depends_on: the subgraphs whose results it reads.
        predicted_seconds: the time that the cost model predicts; None if it has no data.
        measured_seconds: the measured time of its operations; None unless all were measured.
        op_types: the operator of each node, in the order of `nodes`.
    """

    index: int
    device: str
    nodes: tuple[str, ...]
    depends_on: tuple[int, ...] = ()
    predicted_seconds: float | None = None
    measured_seconds: float | None = None
    op_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that one subgraph produces and another reads; it is listed once for each reader.

    `byte_size` is None if a length is known only during an inference.
    """

    value: str
    source: int
    target: int
    byte_size: int | None
    predicted_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why a device does not run a node, or runs it only on the reference evaluator (`level`)."""

    node: str
    op_type: str
    device: str
    level: str
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """How a model is divided among devices, and why.

    Attributes:
        devices: the queried devices, best first.
        strategy, mode: how subgraphs were formed; if several modes were compared, the chosen one.
        placement: how nodes were assigned: "priority" or "measured".
        subgraphs: in an order in which they can run.
        crossings: the values that one subgraph passes to another.
        lower_bound: no partition of these affinities has fewer subgraphs.
        refusals: for every node that a device of higher priority does not run natively, that device's reason.
        sources: for every node, by friendly name, what determined its device: "user", "priority", "measured", "atom".
        predicted_seconds: for each mode that was compared, the predicted time of one inference.
        measured_seconds: the measured time of one inference; None if it was not measured.
        findings: sentences about transfers and splits that cost more than they gain.
        cloned: operations that are in no subgraph, because each subgraph that needs them computes them itself:
            arithmetic on lengths of tensors, and operations that are evaluated at compile time.
        costs: the basis of predictions: "default" costs, "measured" ones, or "measured and default".
    """

    devices: tuple[str, ...]
    strategy: str
    mode: str
    placement: str
    subgraphs: tuple[PlacedSubgraph, ...]
    crossings: tuple[Crossing, ...]
    lower_bound: int
    refusals: tuple[NodeRefusal, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    predicted_seconds: Mapping[str, float] = field(default_factory=dict)
    measured_seconds: float | None = None
    findings: tuple[str, ...] = ()
    cloned: tuple[str, ...] = ()
    costs: str = "default"

    @property
    def node_count(self) -> int:
        """The number of operations in subgraphs."""
        return sum(len(subgraph.nodes) for subgraph in self.subgraphs)

    @property
    def crossing_bytes(self) -> int:
        """The bytes transferred between subgraphs in one inference, as far as lengths are known."""
        return sum(crossing.byte_size or 0 for crossing in self.crossings)

    def to_json(self) -> dict[str, Any]:
        """The report as values for JSON."""
        return {
            "devices": list(self.devices),
            "strategy": self.strategy,
            "mode": self.mode,
            "placement": self.placement,
            "lower_bound": self.lower_bound,
            "crossing_bytes": self.crossing_bytes,
            "subgraphs": [
                {
                    "index": s.index,
                    "device": s.device,
                    "nodes": list(s.nodes),
                    "depends_on": list(s.depends_on),
                    "predicted_seconds": s.predicted_seconds,
                    "measured_seconds": s.measured_seconds,
                    "op_types": list(s.op_types),
                }
                for s in self.subgraphs
            ],
            "crossings": [
                {
                    "value": c.value,
                    "source": c.source,
                    "target": c.target,
                    "byte_size": c.byte_size,
                    "predicted_seconds": c.predicted_seconds,
                }
                for c in self.crossings
            ],
            "refusals": [
                {
                    "node": r.node,
                    "op": r.op_type,
                    "device": r.device,
                    "level": r.level,
                    "cause": r.cause,
                    "reason": r.reason,
                }
                for r in self.refusals
            ],
            "sources": dict(self.sources),
            "predicted_seconds": dict(self.predicted_seconds),
            "measured_seconds": self.measured_seconds,
            "findings": list(self.findings),
            "cloned": list(self.cloned),
            "costs": self.costs,
        }
