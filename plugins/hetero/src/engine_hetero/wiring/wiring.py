"""The connections between the parts of a model: inputs and outputs of each, as plain data for a blob."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.errors import BlobFormatError
from engine.startup import dataclass

NETWORK: Final = -1
"""The part number that represents the network's inputs."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a value, passed instead of it: its shape from `start` to `end`, or its number of elements."""

    is_size: bool = False
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a value: an output of a part or, if `part` is NETWORK, an input of the network."""

    part: int
    index: int
    lengths: Lengths | None = None


@dataclass(frozen=True, slots=True)
class PartWiring:
    """One part: its device, the source of each input, the number of outputs.

    `predicted_seconds` is the predicted time of one inference; None without a prediction.
    """

    device: str
    inputs: tuple[Source, ...]
    output_count: int
    node_count: int
    predicted_seconds: float | None = None

    @property
    def depends_on(self) -> tuple[int, ...]:
        """The parts that must run before this one, ascending."""
        return tuple(sorted({source.part for source in self.inputs} - {NETWORK}))


@dataclass(frozen=True, slots=True)
class Wiring:
    """All parts, in execution order, and the sources of the network's outputs.

    Raises `BlobFormatError` if a part reads a value that is not available before it.
    """

    parts: tuple[PartWiring, ...]
    outputs: tuple[Source, ...]
    input_count: int

    def __post_init__(self) -> None:
        for number, part in enumerate(self.parts):
            for source in part.inputs:
                self._check(source, number, f"part {number}")
        for source in self.outputs:
            self._check(source, len(self.parts), "the network")

    def _check(self, source: Source, reader: int, where: str) -> None:
        if source.part == NETWORK:
            count = self.input_count
        elif 0 <= source.part < reader:
            count = self.parts[source.part].output_count
        else:
            raise BlobFormatError(f"{where} reads part {source.part}, which does not run before it")
        if not 0 <= source.index < count:
            raise BlobFormatError(f"{where} reads value {source.index} of part {source.part}, which has {count} values")

    def stays_on_device(self, reader: PartWiring, source: Source) -> bool:
        """Whether a part reads a value of another part on its own device, so that the value need not leave it."""
        return source.part != NETWORK and source.lengths is None and self.parts[source.part].device == reader.device

    @property
    def devices_that_read_themselves(self) -> tuple[str, ...]:
        """The devices on which one part reads a value of another."""
        return tuple(
            dict.fromkeys(p.device for p in self.parts if any(self.stays_on_device(p, source) for source in p.inputs))
        )

    def to_json(self) -> dict[str, Any]:
        """The wiring as values that `json` can encode, for the section of a blob."""
        return {
            "input_count": self.input_count,
            "outputs": [_source_to_json(source) for source in self.outputs],
            "parts": [
                {
                    "device": part.device,
                    "inputs": [_source_to_json(source) for source in part.inputs],
                    "output_count": part.output_count,
                    "node_count": part.node_count,
                    "predicted_seconds": part.predicted_seconds,
                }
                for part in self.parts
            ],
        }

    @classmethod
    def from_json(cls, value: object) -> Wiring:
        """Read what `to_json` returned. Raises `BlobFormatError` for anything else."""
        try:
            return _wiring(value)
        except (KeyError, TypeError, ValueError) as e:
            raise BlobFormatError(f"the wiring of the parts is malformed: {type(e).__name__}: {e}") from e


def _source_to_json(source: Source) -> list[Any]:
    lengths = source.lengths
    taken = [] if lengths is None else [["size"] if lengths.is_size else ["shape", lengths.start, lengths.end]]
    return [source.part, source.index, *taken]


def _source(value: Any) -> Source:
    match value:
        case [int(part), int(index)]:
            return Source(part, index)
        case [int(part), int(index), ["size"]]:
            return Source(part, index, Lengths(is_size=True))
        case [int(part), int(index), ["shape", (int() | None) as start, (int() | None) as end]]:
            return Source(part, index, Lengths(False, start, end))
    raise TypeError(f"a source is [part, index] or [part, index, lengths]; got {value!r:.80}")


def _wiring(value: Any) -> Wiring:
    parts = tuple(_part(part) for part in _list(value["parts"]))
    return Wiring(parts, tuple(map(_source, _list(value["outputs"]))), _count(value["input_count"]))


def _part(value: Any) -> PartWiring:
    device, seconds = value["device"], value["predicted_seconds"]
    if not isinstance(device, str) or not device or not isinstance(seconds, (int, float, type(None))):
        raise TypeError(f"a part has a device and predicted seconds; got {device!r:.80} and {seconds!r:.80}")
    inputs = tuple(map(_source, _list(value["inputs"])))
    return PartWiring(device, inputs, _count(value["output_count"]), _count(value["node_count"]), seconds)


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a count, got {value!r:.80}")
    return value
