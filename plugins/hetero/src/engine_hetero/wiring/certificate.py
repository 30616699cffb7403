"""A certificate that a division is acyclic, stored in a blob and verified on import.

Every operation has a run number that never decreases along an edge, and increases along each edge between subgraphs: so
no path that leaves a subgraph returns to it, and the subgraphs can run in sequence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.errors import BlobCorruptError, EngineError
from engine.native.graph import verify_runs
from engine.startup import dataclass
from engine_hetero.affinity.budget import NodeMemory
from engine_hetero.division.division import Division
from engine_hetero.query.model_graph import Ints
from engine_hetero.wiring.wiring import NETWORK, Wiring


@dataclass(frozen=True)
class Certificate:
    """The divided graph, and the numbers that certify the division.

    Attributes:
        names: (N,) the operations.
        edges: (E, 2) producer and consumer.
        part: (N,) the part of each operation.
        run: (N,) its run number.
        lower_bound: a lower bound on the number of subgraphs of the placement.
        weights: (N,) the bytes of constants that each operation reads; empty if no device had a budget.
        budgets: the MEMORY_BUDGET of devices for which the model was divided: the second resource of the division.
    """

    names: tuple[str, ...]
    edges: Ints
    part: Ints
    run: Ints
    lower_bound: int
    weights: Ints
    budgets: Mapping[str, int]

    @classmethod
    def of(cls, division: Division, budgets: Mapping[str, int]) -> Certificate:
        """Take what certifies `division`: its graph, the part, run and weights of each operation, and the bound."""
        graph, found = division.graph, division.partition
        weights = NodeMemory.of(graph).weights if budgets else np.zeros(0, np.int64)
        return cls(
            graph.names, graph.edges, division.part_of_node, found.run, found.lower_bound, weights, dict(budgets)
        )

    def verify(self, wiring: Wiring) -> None:
        """Raise `BlobCorruptError` unless the numbers certify the division and match the connections of the parts."""
        try:
            verify_runs(self.edges, self.part, self.run)
        except EngineError as e:
            raise BlobCorruptError(f"the partition's certificate is not valid: {e}") from e
        counts = np.bincount(self.part, minlength=len(wiring.parts))
        if len(counts) > len(wiring.parts) or any(n != p.node_count for n, p in zip(counts, wiring.parts, strict=True)):
            raise BlobCorruptError(
                f"the parts have {counts.tolist()!r:.100} nodes in the partition's certificate, but "
                f"{[part.node_count for part in wiring.parts]!r:.100} in the blob"
            )
        for device, budget in self.budgets.items():
            there = [number for number, part in enumerate(wiring.parts) if part.device == device]
            held = int(self.weights[np.isin(self.part, there)].sum())
            if held > budget:
                raise BlobCorruptError(
                    f"the operations on {device} read {held} bytes of constants in the partition's certificate, but "
                    f"its memory budget is {budget}"
                )
        ends = self.part[self.edges]
        proven = set(map(tuple, ends[ends[:, 0] != ends[:, 1]].tolist()))
        wired = {(s.part, p) for p, part in enumerate(wiring.parts) for s in part.inputs if s.part != NETWORK}
        if proven != wired:
            pair = min(proven ^ wired)
            known, other = ("certificate", "wiring") if pair in proven else ("wiring", "certificate")
            raise BlobCorruptError(
                f"part {pair[1]} reads part {pair[0]} in the partition's {known}, but not in its {other}"
            )

    def to_bytes(self) -> bytes:
        """Encode the certificate as UTF-8 JSON."""
        values = {
            "names": self.names,
            "edges": self.edges.tolist(),
            "part": self.part.tolist(),
            "run": self.run.tolist(),
            "lower_bound": self.lower_bound,
        }
        if self.budgets:
            values |= {"weights": self.weights.tolist(), "budgets": dict(self.budgets)}
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Certificate:
        """Read what `to_bytes` wrote. Raises `BlobCorruptError` for anything else."""
        try:
            value = json.loads(data)
            names = tuple(value["names"])
            if not all(isinstance(name, str) for name in names) or not isinstance(value["lower_bound"], int):
                raise TypeError("expected `names` of strings and an integer `lower_bound`")
            edges = _integers(value["edges"]).reshape(-1, 2)
            part, run, weights = (_integers(each) for each in (value["part"], value["run"], value.get("weights", [])))
            budgets = value.get("budgets", {})
            if not isinstance(budgets, dict) or not all(type(each) is int and each >= 1 for each in budgets.values()):
                raise TypeError("expected `budgets` of positive integers")
            certificate = cls(names, edges, part, run, value["lower_bound"], weights, budgets)
        except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as e:
            raise BlobCorruptError(f"the partition's certificate is malformed: {type(e).__name__}: {e}") from e
        count = len(names)
        ranges = [(edges, count), (certificate.part, count), (certificate.run, count)]
        if any(len(values) and not (values.min() >= 0 and values.max() < limit) for values, limit in ranges):
            raise BlobCorruptError("the partition's certificate has numbers that are out of range")
        if not len(certificate.part) == len(certificate.run) == count:
            raise BlobCorruptError(
                f"the partition's certificate has {count} names, but {len(certificate.part)} nodes with a part "
                f"and {len(certificate.run)} with a run"
            )
        if len(weights) != (count if budgets else 0) or weights.min(initial=0) < 0:
            raise BlobCorruptError("the partition's certificate has weights that do not match its operations")
        return certificate


def _integers(values: Any) -> Ints:
    array = np.array(values if values else [], dtype=np.int64 if not values else None)
    if array.dtype.kind != "i":
        raise TypeError(f"expected integers, got {array.dtype}")
    return array.astype(np.int64)
