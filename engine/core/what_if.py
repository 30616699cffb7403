"""The changes if a model were compiled for other devices, with another configuration, or without a pass."""

from __future__ import annotations

from collections.abc import Iterator

from engine.plugin_api import QueryResult, SupportLevel
from engine.startup import dataclass

_LEVELS = (SupportLevel.NATIVE, SupportLevel.REFERENCE, SupportLevel.REFUSED)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that runs otherwise: `before` and `after` say how and where, such as "native on CPU in f32"."""

    node: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """The answer to a query in numbers.

    Attributes:
        native, reference, refused: the number of nodes at each level.
        subgraphs, crossing_bytes: of a device that runs on others, its parts and what they pass on; else None.
        predicted_seconds: of such a device, the time of an inference as its costs predict, in the chosen mode.
    """

    native: int
    reference: int
    refused: int
    subgraphs: int | None = None
    crossing_bytes: int | None = None
    predicted_seconds: float | None = None

    @classmethod
    def of(cls, answer: QueryResult) -> QuerySummary:
        """Count the levels of support and, for a device that divides models, the subgraphs and crossing bytes."""
        native, reference, refused = (len(answer.at(level)) for level in _LEVELS)
        placement = answer.placement
        if placement is None:
            return cls(native, reference, refused)
        seconds = placement.predicted_seconds.get(placement.mode)
        return cls(native, reference, refused, len(placement.subgraphs), placement.crossing_bytes, seconds)


def node_changes(before: tuple[str, QueryResult], after: tuple[str, QueryResult]) -> list[NodeChange]:
    """The nodes that run otherwise, in order; `before` and `after` are device strings and their answers."""
    old, new = dict(_described(*before)), dict(_described(*after))
    return [
        NodeChange(name, old[name], new.get(name, "absent")) for name in old if old[name] != new.get(name, "absent")
    ]


def _described(device: str, answer: QueryResult) -> Iterator[tuple[str, str]]:
    parts = () if answer.placement is None else answer.placement.subgraphs
    devices = {node: part.device for part in parts for node in part.nodes}
    for name, support in answer.nodes.items():
        precision = f" in {support.precision}" if support.precision else ""
        yield name, f"{support.level.value} on {devices.get(name, device)}{precision}"
