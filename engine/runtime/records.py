"""The records of a profile: when stages, nodes and transfers ran."""

from __future__ import annotations

from typing import Final, Protocol

from engine.startup import dataclass

SUBGRAPH: Final = "Subgraph"
"""The operator of a record of a whole subgraph.

A device that runs on others makes one beside the records of its nodes. A device that runs several nodes as one, such as
by another runtime, makes one that names them, and none of these nodes.
"""


@dataclass(frozen=True, slots=True)
class StageProfile:
    """When one stage of a request ran (`time.perf_counter_ns`), and on which executor."""

    name: str
    executor: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """When one node of the graph ran, and how.

    Attributes:
        name: unique in the inference; for fused nodes, the name of one of them.
        status: "native", "reference", or a device's own term; for a subgraph, its device.
        start_ns: `time.perf_counter_ns`.
        kernel: what the device ran, if it says so.
        part: the subgraph that the node is in, such as "1: CPU", for a device that runs on others.
        node: the node's friendly name, if `name` differs from it because the node has several records; otherwise empty.
        live_bytes: the bytes of intermediate results that were in use meanwhile; None if the device does not say.
        nodes: of a record of a whole subgraph, the friendly names of the nodes that it ran as one, so that the time of
            each is not known; otherwise empty.
    """

    name: str
    op_type: str
    status: str
    start_ns: int
    duration_ns: int
    kernel: str = ""
    part: str = ""
    node: str = ""
    live_bytes: int | None = None
    nodes: tuple[str, ...] = ()

    @property
    def is_total(self) -> bool:
        """Whether other records have its time, too: of a subgraph whose nodes have records of their own."""
        return self.op_type == SUBGRAPH and not self.nodes

    @property
    def node_name(self) -> str:
        """The friendly name of the node in the model."""
        return self.node or self.name


@dataclass(frozen=True, slots=True)
class TransferProfile:
    """When a value was passed from one memory to another: "host", a device, or a subgraph such as "1: CPU".

    It takes no time if both share the memory. `byte_size` is None if the device does not say.
    """

    name: str
    source: str
    target: str
    byte_size: int | None
    start_ns: int
    duration_ns: int


class InferenceProfile(Protocol):
    """The members of a profile (`ProfilingInfo`) that tables and traces read."""

    @property
    def request_id(self) -> int:
        """The number of the request that ran the inference."""

    @property
    def stages(self) -> tuple[StageProfile, ...]:
        """The stages of the inference, in execution order."""

    @property
    def nodes(self) -> tuple[NodeProfile, ...]:
        """The nodes that the inference ran."""

    @property
    def transfers(self) -> tuple[TransferProfile, ...]:
        """The copies that the inference made."""

    @property
    def begun_ns(self) -> int:
        """The time at which the inference was started, in ns."""

    @property
    def duration_ns(self) -> int:
        """The time from start to end, in nanoseconds."""
