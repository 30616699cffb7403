"""Costs of running nodes and moving values, in seconds: from default rates, until they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.passes.work import Work, work_of
from engine.startup import dataclass
from engine_hetero.query.claims import REFERENCE
from engine_hetero.query.model_graph import Ints, ModelGraph

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rates:
    """Assumed rates of a device without measurements: only for comparing alternatives, not real times.

    The time of a node is the maximum of the times for its operations and its bytes, plus its overhead.

    Attributes:
        operations: floating-point or integer operations per second.
        bytes: bytes that a node reads and writes per second.
        node_overhead: seconds per node.
        subgraph_overhead: seconds to start a subgraph.
        transfer_overhead: seconds to hand one value from one device to another.
        transfer_bytes: bytes per second between devices that do not share memory.
    """

    operations: float = 1e11
    bytes: float = 1e10
    node_overhead: float = 1e-6
    subgraph_overhead: float = 2e-5
    transfer_overhead: float = 5e-6
    transfer_bytes: float = 1e10


DEFAULT_RATES: Final = Rates()
"""Rates for native nodes. All devices are assumed equal, since nothing is known of them."""

REFERENCE_RATES: Final = Rates(operations=1e9, bytes=5e8, node_overhead=1e-5)
"""Rates for nodes on the reference evaluator."""


@dataclass(frozen=True)
class CostModel:
    """The costs of an inference, by device and node.

    Attributes:
        devices: the device strings.
        node_seconds: (D, N) finite, also for nodes that a device refuses.
        is_measured: (D, N) whether the time was measured; otherwise it is from default rates.
        transfer_overhead: (D, D) seconds for handing a value from one device to another.
        transfer_per_byte: (D, D) seconds for each byte of it; 0 for devices that share memory.
        subgraph_overhead: (D,) seconds for starting a subgraph.
    """

    devices: tuple[str, ...]
    node_seconds: Floats
    is_measured: Bools
    transfer_overhead: Floats
    transfer_per_byte: Floats
    subgraph_overhead: Floats

    @property
    def origin(self) -> str:
        """The origin of the nodes' times: "measured", "default", or "measured and default"."""
        if self.is_measured.all():
            return "measured"
        return "measured and default" if self.is_measured.any() else "default"

    def placed_seconds(self, affinity: Ints) -> Floats:
        """(N,) the seconds of each node on its device."""
        return self.node_seconds[affinity, np.arange(len(affinity))]

    def total_seconds(self, graph: ModelGraph, affinity: Ints) -> float:
        """The cost of a placement: its nodes, and one transfer of each value to every other device that reads it.

        Subgraph overheads and overlap are not included.
        """
        return float(self.placed_seconds(affinity).sum() + self.edge_seconds(graph, affinity, affinity).sum())

    def edge_seconds(self, graph: ModelGraph, affinity: Ints, subgraph: Ints) -> Floats:
        """(E,) the seconds for moving the value of each edge from one subgraph to another.

        0 within a subgraph, and for a value that an earlier edge already brings there.
        """
        producer, consumer = graph.edges[:, 0], graph.edges[:, 1]
        crossing = np.flatnonzero(subgraph[producer] != subgraph[consumer])
        deliveries = value_numbers(graph)[crossing] * (subgraph.max(initial=0) + 1) + subgraph[consumer[crossing]]
        first = crossing[np.unique(deliveries, return_index=True)[1]]
        source, target = affinity[producer[first]], affinity[consumer[first]]
        seconds = np.zeros(len(graph.edges))
        seconds[first] = self.transfer_seconds(source, target, graph.byte_sizes[first])
        return seconds

    def transfer_seconds(self, source: Ints | int, target: Ints | int, byte_size: Ints | int) -> Floats:
        """The seconds for moving values of these sizes between devices."""
        found: Floats = self.transfer_overhead[source, target] + byte_size * self.transfer_per_byte[source, target]
        return found

    def with_measured(self, device: int, seconds: Floats) -> CostModel:
        """The cost model with measured times of one device; NaN for times that were not measured.

        Default times of the device are scaled by the median ratio of measured to default times, so that a node is not
        preferred there only because it was not measured.
        """
        known = np.isfinite(seconds)
        if not known.any():
            return self
        defaults = np.maximum(self.node_seconds[device], 1e-12)
        scale = float(np.median(seconds[known] / defaults[known]))
        node_seconds, is_measured = self.node_seconds.copy(), self.is_measured.copy()
        node_seconds[device] = np.where(known, seconds, defaults * scale)
        is_measured[device] = known
        return replace(self, node_seconds=node_seconds, is_measured=is_measured)


def default_costs(
    graph: ModelGraph,
    devices: Sequence[str],
    levels: Ints | None = None,
    rates: Sequence[Rates] | None = None,
    *,
    shares_memory: Bools | None = None,
) -> CostModel:
    """Costs from the operations and bytes of each node and the rates above; unknown lengths count as 1.

    Args:
        levels: (D, N) how the devices run the nodes, as in `Claims`; by default all natively.
        rates: the rates of each device, if known.
        shares_memory: (D, D) pairs of devices that compute in the same memory; by default only equal devices.
    """
    rates = [DEFAULT_RATES] * len(devices) if rates is None else rates
    work = [work_of(node) for node in graph.nodes]
    native = np.array([_node_seconds(work, each) for each in rates]).reshape(len(devices), len(graph.nodes))
    if levels is not None:
        native = np.where(levels == REFERENCE, _node_seconds(work, REFERENCE_RATES), native)
    overhead = np.array([each.transfer_overhead for each in rates])
    per_byte = np.array([1 / each.transfer_bytes for each in rates])
    shared = np.eye(len(devices), dtype=bool)
    if shares_memory is not None:
        shared |= shares_memory
    return CostModel(
        tuple(devices),
        native,
        np.zeros(native.shape, bool),
        np.maximum.outer(overhead, overhead),
        np.where(shared, 0.0, np.maximum.outer(per_byte, per_byte)),
        np.array([each.subgraph_overhead for each in rates]),
    )


def value_numbers(graph: ModelGraph) -> Ints:
    """(E,) a number for the value of each edge, equal for equal values."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in graph.values], np.int64)


def _node_seconds(work: Sequence[Work], rates: Rates) -> Floats:
    operations = np.array([each.operations for each in work])
    moved = np.array([each.bytes for each in work])
    seconds: Floats = np.maximum(operations / rates.operations, moved / rates.bytes) + rates.node_overhead
    return seconds
