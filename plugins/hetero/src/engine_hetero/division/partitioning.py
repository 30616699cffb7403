"""Partitions of a graph over devices: `partition` for plain arrays, and its result."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.native import graph
from engine.startup import dataclass
from engine_hetero.division.rollback_trace import trace_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_log = logging.getLogger("engine.hetero")


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Subgraphs, each on one device, that can run in sequence."""

    subgraph: Integers
    """(N,): the subgraph of each node, 0..count-1."""
    count: int
    lower_bound: int
    """A lower bound on the number of subgraphs; exact for two devices, and for more with up to a few hundred nodes."""
    order: Integers
    """(count,): the subgraphs in execution order."""
    crossing_bytes: int
    """The bytes of all edges between subgraphs; 0 if no bytes are given."""
    device: Integers
    """(count,): the device of each subgraph."""
    run: Integers
    """(N,): a number per subgraph, which increases along every edge between two subgraphs."""
    splits: int
    """How many subgraphs were added to break cycles in the strategy's result."""
    statistics: dict[str, float]
    """Statistics of the strategy, by name."""

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
    """Partition a graph into subgraphs, each on one device, that can run in sequence.

    edges: (E, 2) integers, from and to of each edge; affinity: (N,) integers, the index of each node's device;
    bytes: (E,) integers, the bytes of each edge.

    strategy: `potential`, `rollback` or `restriction_map`; mode, for `potential`: `min_subgraphs`, `connected` (more
    subgraphs, which can overlap), or `auto`, the faster of the two in a schedule with `costs`.
    atoms: (N,) integers; nodes with the same number >= 0 and all nodes between them stay in one subgraph.
    trace: receives the steps of `rollback`, up to 100,000, or fewer if their lists are long. They are also logged by
        "engine.hetero" at DEBUG.

    Raises GraphError for a malformed graph, naming the nodes of a cycle, and PartitionError for other invalid
    arguments. O(N + E) time and memory for `potential` in the mode `min_subgraphs`.
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
