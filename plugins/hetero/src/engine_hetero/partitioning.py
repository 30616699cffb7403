"""Partitions of a graph over devices: `partition` for plain arrays, and what it returns."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.native import graph
from engine_hetero.rollback_trace import trace_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_log = logging.getLogger("engine.hetero")


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Subgraphs of one device each, that can be run one after the other."""

    subgraph: Integers
    """(N,): the subgraph of each node, 0..count-1."""
    count: int
    lower_bound: int
    """No partition has fewer subgraphs. With two devices some has as many; with more, if nodes are some hundreds."""
    order: Integers
    """(count,): the subgraphs in an order in which they can be run."""
    crossing_bytes: int
    """The bytes of all edges between subgraphs; 0 where no bytes were given."""
    device: Integers
    """(count,): the device of each subgraph."""
    run: Integers
    """(N,): one number for all nodes of a subgraph, which rises on every edge between two."""
    splits: int
    """How many subgraphs were added because those that the strategy chose waited for each other."""
    statistics: dict[str, float]
    """Figures of the strategy, by name."""

    @property
    def repaired(self) -> bool:
        """Whether the strategy's result was cyclic and had to be split."""
        return self.splits > 0


def partition(
    edges: npt.ArrayLike,
    affinity: npt.ArrayLike,
    strategy: str = "potential",
    mode: str = "min_subgraphs",
    bytes: npt.ArrayLike | None = None,
    *,
    atoms: npt.ArrayLike | None = None,
    costs: graph.Costs | None = None,
    trace: list[graph.TraceStep] | None = None,
) -> Partition:
    """Partition a graph into subgraphs of one device each that can be run one after the other.

    edges: (E, 2) integers, from and to of each edge; affinity: (N,) integers, the index of each node's device;
    bytes: (E,) integers, what each edge carries.

    strategy: `potential`, `rollback` or `restriction_map`; mode, for `potential`: `min_subgraphs`, `connected` (more
    subgraphs, which can overlap), or `auto`, whichever of the two a schedule with `costs` says is done first.
    atoms: (N,) integers; nodes of one number >= 0 are never in two subgraphs, and neither is what lies between them.
    trace: receives the steps of `rollback`, up to 100,000, fewer where long lists belong to them. They are logged by
    "engine.hetero", too, at DEBUG.

    Raises GraphError where the graph is malformed, naming the nodes of a cycle, and PartitionError for anything else
    that does not fit. O(N + E) time and memory for `potential` in the mode `min_subgraphs`.
    """
    is_logged = strategy == "rollback" and _log.isEnabledFor(logging.DEBUG)
    steps: list[graph.TraceStep] | None = [] if is_logged or trace is not None else None
    raw = graph.partition_graph(edges, affinity, strategy, mode, bytes, atoms=atoms, costs=costs, trace=steps)
    if trace is not None and steps is not None:
        trace.extend(steps)
    if is_logged:
        for line in trace_lines(steps or ()):
            _log.debug("%s", line)
    return Partition(
        subgraph=raw.subgraph,
        count=len(raw.order),
        lower_bound=raw.lower_bound,
        order=raw.order,
        crossing_bytes=raw.crossing_bytes,
        device=raw.device,
        run=raw.run,
        splits=raw.splits,
        statistics=raw.statistics,
    )
