"""Graph algorithms of the native core, over graphs given as arrays.

A graph is `edges`, an (E, 2) array of integers (from, to), and a number of nodes; it must be acyclic. All functions
release the GIL, take time near-linear in nodes and edges unless stated otherwise, and may be called by any thread.
All functions raise `GraphError` for a malformed graph, naming the nodes of a cycle, and `PartitionError` for other
invalid arguments.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import PartitionError
from engine.native.extension import _core
from engine.startup import dataclass

__all__ = [
    "CLOSURE_BYTES", "Closure", "Costs", "Cut", "RawPartition", "TraceStep", "check_partition", "lower_bound",
    "min_cut", "partition_graph", "strategies", "transitive_closure", "verify_runs",
]  # fmt: skip

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Reals: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

CLOSURE_BYTES = 1 << 30
"""The default memory limit of a transitive closure in bytes; enough for 130,000 nodes."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Execution times in seconds, for comparing partitions; omitted ones have defaults."""

    node_seconds: npt.ArrayLike | None = None
    """(N,): the time of each node on its device."""
    edge_seconds: npt.ArrayLike | None = None
    """(E,): the time to transfer the value of an edge from one device to another."""
    overhead_seconds: float | None = None
    """The time to start one subgraph."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a strategy, as a traced partition records it."""

    kind: str
    """roots, root, merge, fail, rollback, end, choose; or cut, the last step if there were too many."""
    device: int
    node: int
    """The node concerned; for `end` and `choose`, the root of the candidate; for `roots` and `cut`, -1."""
    condition: str
    """The condition of the candidate after the step: ok, possible or violated."""
    nodes: tuple[int, ...]
    """For `roots`, the nodes from which candidates may grow; for `choose`, the subgraph; otherwise the condition's
    cause.
    """


@dataclass(frozen=True, slots=True)
class RawPartition:
    """The partition that `partition_graph` returns, by indices of nodes and devices."""

    subgraph: Integers
    """(N,): the subgraph of each node, 0..count-1."""
    run: Integers
    """(N,): the certificate: one number per subgraph, which increases along every edge between two subgraphs."""
    order: Integers
    """(count,): the subgraphs in an order in which they can run."""
    device: Integers
    """(count,): the device of each subgraph."""
    lower_bound: int
    crossing_bytes: int
    splits: int
    """How many subgraphs were added to repair a cyclic result."""
    statistics: dict[str, float]


def strategies() -> tuple[str, ...]:
    """Return the names of the strategies that `partition_graph` knows."""
    return tuple(_core.graph.strategies())


def partition_graph(
    edges: npt.ArrayLike,
    affinity: npt.ArrayLike,
    strategy: str = "potential",
    mode: str = "min_subgraphs",
    bytes: npt.ArrayLike | None = None,
    *,
    atoms: npt.ArrayLike | None = None,
    costs: Costs | None = None,
    trace: list[TraceStep] | None = None,
    closure_bytes: int = CLOSURE_BYTES,
    threads: int = 1,
) -> RawPartition:
    """Partition a graph into subgraphs of one device each whose quotient graph is acyclic.

    affinity: (N,), the device of each node; bytes: (E,), the size of each edge's value; atoms: (N,), nodes with the
    same number >= 0 stay together. Strategies that support tracing append their steps to `trace`.
    """
    costs = costs or Costs()
    raw = _core.graph.partition(
        _edges(edges),
        _integers(affinity, "affinity"),
        strategy=strategy,
        mode=mode,
        bytes=_optional_integers(bytes, "bytes"),
        atoms=_optional_integers(atoms, "atoms"),
        node_seconds=_optional_reals(costs.node_seconds, "node_seconds"),
        edge_seconds=_optional_reals(costs.edge_seconds, "edge_seconds"),
        overhead_seconds=costs.overhead_seconds,
        closure_bytes=closure_bytes,
        threads=threads,
        trace=trace is not None,
    )
    if trace is not None:
        trace.extend(TraceStep(*step) for step in raw["trace"])
    return RawPartition(
        raw["subgraph"],
        raw["run"],
        raw["order"],
        raw["device"],
        raw["lower_bound"],
        raw["crossing_bytes"],
        raw["splits"],
        raw["statistics"],
    )


def check_partition(edges: npt.ArrayLike, subgraph: npt.ArrayLike) -> Integers:
    """Return an order in which subgraphs can run; subgraph: (N,), 0..count-1.

    Raises PartitionError, naming the subgraphs of a cycle, if subgraphs depend on each other.
    """
    return _core.graph.check_partition(_edges(edges), _integers(subgraph, "subgraph"))


def verify_runs(edges: npt.ArrayLike, subgraph: npt.ArrayLike, run: npt.ArrayLike) -> None:
    """Check a certificate that subgraphs do not depend on each other; run: (N,), the number of each node.

    Raises PartitionError, naming a node or an edge, unless all nodes of a subgraph have the same number and it
    increases along every edge between two subgraphs.
    """
    _core.graph.verify_runs(_edges(edges), _integers(subgraph, "subgraph"), _integers(run, "run"))


@dataclass(frozen=True, slots=True)
class Cut:
    """The cheapest assignment of each node to one of two sides."""

    side: Integers
    """(N,): 0 for the first side, 1 for the second."""
    cost: int


def min_cut(
    edges: npt.ArrayLike,
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    forward: npt.ArrayLike,
    backward: npt.ArrayLike | None = None,
) -> Cut:
    """Return the cheapest choice of a side for each node; among equals, with the fewest nodes on the first side.

    first, second: (N,), the cost of each node on either side; forward, backward: (E,), the cost of each edge that is
    cut, with its start on the first or on the second side; `backward` defaults to `forward`. Costs are integers,
    0 or more, and their sum fits into 64 bits. The graph may have cycles. Near-linear in practice.
    """
    costs_forward = _integers(forward, "forward")
    costs_backward = costs_forward if backward is None else _integers(backward, "backward")
    side, cost = _core.graph.min_cut(
        _edges(edges), _integers(first, "first"), _integers(second, "second"), costs_forward, costs_backward
    )
    return Cut(side, cost)


def lower_bound(edges: npt.ArrayLike, affinity: npt.ArrayLike) -> int:
    """Return a lower bound of the number of subgraphs of any partition.

    It is the exact minimum for two devices, and for more devices in graphs of up to some hundred nodes.
    """
    return _core.graph.lower_bound(_edges(edges), _integers(affinity, "affinity"))


class Closure:
    """The reachability between the nodes of a graph."""

    __slots__ = ("_closure",)

    def __init__(self, closure: _core.graph.Closure) -> None:
        self._closure = closure

    def reaches(self, source: int, target: int) -> bool:
        """Whether a path of at least one edge leads from one node to the other."""
        return self._closure.reaches(source, target)

    def path_nodes(self, source: int, target: int) -> Integers:
        """Return the inner nodes of all paths from one node to the other, ascending; cached."""
        return self._closure.path_nodes(source, target)

    @property
    def bytes(self) -> int:
        """The memory that the closure takes, in bytes."""
        return self._closure.bytes

    @property
    def is_dense(self) -> bool:
        """Whether the closure is a table with constant-time queries; otherwise each query is a search."""
        return self._closure.is_dense


def transitive_closure(edges: npt.ArrayLike, nodes: int, max_bytes: int = CLOSURE_BYTES, threads: int = 1) -> Closure:
    """Return the closure of a graph: a table of about nodes^2 / 16 bytes, or no table if that exceeds `max_bytes`."""
    return Closure(_core.graph.Closure(_edges(edges), nodes, max_bytes, threads))


def _edges(edges: npt.ArrayLike) -> Integers:
    array = np.asarray(edges)
    # An empty list has shape (0,).
    return _integers(array.reshape(0, 2) if array.shape == (0,) else array, "edges")


def _integers(values: npt.ArrayLike, name: str) -> Integers:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size > 0:
        raise PartitionError(f"{name} has elements of type {array.dtype}; expected integers")
    if array.dtype == np.uint64 and array.size > 0 and int(array.max()) > np.iinfo(np.int64).max:
        raise PartitionError(f"{name} has the value {array.max()}; expected signed 64-bit integers")
    return np.ascontiguousarray(array, np.int64)


def _optional_integers(values: npt.ArrayLike | None, name: str) -> Integers | None:
    return None if values is None else _integers(values, name)


def _optional_reals(values: npt.ArrayLike | None, name: str) -> Reals | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" and array.size > 0:
        raise PartitionError(f"{name} has elements of type {array.dtype}; expected numbers")
    return np.ascontiguousarray(array, np.float64)
