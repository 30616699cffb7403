"""`MemoryForecast`: the memory that a network takes for inputs of given shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from engine.errors import PluginContractError
from engine.startup import dataclass

_SIZES: Final = ("weights", "mapped", "arena", "scratch", "states", "inputs", "outputs", "peak")


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """The memory of a network while it runs, in bytes. What compiling takes for a while is not included.

    Attributes:
        weights: constants, in the forms in which the device keeps them; all requests share them. Bytes that several
            constants share count once.
        mapped: the part of the weights that is in a mapped file. The system has in memory what was read lately, and
            drops it if other memory is needed.
        arena: intermediate results of one inference, which the device keeps for later ones.
        scratch: what one inference needs beside it: the working memory of kernels, values that pass from one plan to
            another.
        states: the variables of one request, after an inference.
        inputs: the tensors of the inputs of one inference, on the host.
        outputs: the results of one inference, on the host.
        streams: how many inferences run at one time.
        peak: the most memory at one time, with `streams` inferences, without what is mapped.
        parts: the networks on which it runs, as of `ExecutableNetwork.parts`; the sums above include them.
        unknown: the operations whose results have sizes that only an inference knows. They are not counted.
    """

    weights: int
    mapped: int
    arena: int
    scratch: int
    states: int
    inputs: int
    outputs: int
    streams: int
    peak: int
    parts: Mapping[str, MemoryForecast] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        weights: int,
        arena: int,
        mapped: int = 0,
        scratch: int = 0,
        states: int = 0,
        inputs: int = 0,
        outputs: int = 0,
        streams: int = 1,
        unknown: tuple[str, ...] = (),
    ) -> MemoryForecast:
        """The forecast of a network that runs on no other one: each stream has everything but the weights."""
        peak = weights - mapped + streams * (arena + scratch + states + inputs + outputs)
        return cls(weights, mapped, arena, scratch, states, inputs, outputs, streams, peak, {}, unknown)

    @classmethod
    def of_parts(
        cls,
        parts: Mapping[str, MemoryForecast],
        *,
        inputs: int,
        outputs: int,
        states: int = 0,
        passed: int = 0,
    ) -> MemoryForecast:
        """The forecast of a network that runs on others, which all exist at one time.

        Args:
            inputs, outputs, states: its own, of one inference.
            passed: the values that one inference keeps on the host beside them, such as those between parts.
        """
        all_parts = list(parts.values())
        streams = max((part.streams for part in all_parts), default=1)
        weights, mapped = (sum(part.weights for part in all_parts), sum(part.mapped for part in all_parts))
        running = sum(part.streams * (part.arena + part.scratch + part.states) for part in all_parts)
        return cls(
            weights,
            mapped,
            sum(part.arena for part in all_parts),
            sum(part.scratch for part in all_parts) + passed,
            sum(part.states for part in all_parts) + states,
            inputs,
            outputs,
            streams,
            weights - mapped + running + streams * (inputs + outputs + states + passed),
            dict(parts),
            tuple(dict.fromkeys(name for part in all_parts for name in part.unknown)),
        )

    def to_json(self) -> dict[str, Any]:
        """The forecast as values for JSON."""
        return {
            **{name: getattr(self, name) for name in (*_SIZES, "streams")},
            "unknown": list(self.unknown),
            "parts": {name: part.to_json() for name, part in self.parts.items()},
        }

    def require_valid(self, device: str) -> None:
        """Raise `PluginContractError`, naming the device, unless the numbers can be sizes that belong together."""
        wrong = [name for name in _SIZES if type(getattr(self, name)) is not int or getattr(self, name) < 0]
        if not wrong and (type(self.streams) is not int or self.streams < 1):
            wrong = ["streams"]
        if not wrong and self.mapped > self.weights:
            wrong = ["mapped"]
        if not wrong and self.peak < self.weights - self.mapped + self.arena:
            wrong = ["peak"]
        if wrong:
            raise PluginContractError(
                f"plugin {device}: forecast_memory must return sizes in bytes, 0 or more, at least one stream, and a "
                f"peak of at least `weights`, less `mapped`, and `arena`; got "
                f"{wrong[0]} {getattr(self, wrong[0])!r:.40}"
            )
