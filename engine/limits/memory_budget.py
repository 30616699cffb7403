"""Messages on networks that do not fit into MEMORY_BUDGET: what they take, where, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from engine.limits.memory import shown_bytes

_NAMED: Final = 3
_KEY: Final = "MEMORY_BUDGET"


class Sizes(Protocol):
    """The sizes of a network that a message has; see `engine.plugin_api.MemoryForecast`."""

    @property
    def weights(self) -> int:
        """Of the constants."""

    @property
    def mapped(self) -> int:
        """The part of the constants in a mapped file."""

    @property
    def arena(self) -> int:
        """Of the results of one inference."""

    @property
    def scratch(self) -> int:
        """Of what one inference needs beside them."""

    @property
    def states(self) -> int:
        """Of the variables of one request."""

    @property
    def inputs(self) -> int:
        """Of the inputs of one inference."""

    @property
    def outputs(self) -> int:
        """Of its outputs."""

    @property
    def streams(self) -> int:
        """How many inferences run at one time."""

    @property
    def peak(self) -> int:
        """Of all together."""


def over_budget(what: str, sizes: Sizes, budget: int, largest: str = "") -> str:
    """The message for a network that takes too much; `largest`: a clause on what takes most."""
    weights, results = sizes.weights - sizes.mapped, sizes.arena + sizes.scratch
    ports = sizes.inputs + sizes.outputs + sizes.states
    streams = f", and for each of {sizes.streams} streams" if sizes.streams > 1 else ","
    return (
        f"{what} does not fit into {_KEY} ({budget} bytes): it takes {sizes.peak} bytes (weights {shown_bytes(weights)}"
        f"{streams} intermediate results {shown_bytes(results)}, inputs, outputs and variables {shown_bytes(ports)})"
        f"{largest}; the smallest budget for it here is {_KEY}={sizes.peak}; otherwise {_LESS}"
    )


def weights_over_budget(what: str, weights: int, budget: int, largest: str = "") -> str:
    """The message for a network whose weights take too much, whatever the lengths of its inputs are."""
    return (
        f"{what} does not fit into {_KEY} ({budget} bytes): its weights alone take {weights} bytes{largest}; give it "
        f"more than {_KEY}={weights}; otherwise {_LESS}"
    )


def largest_clause(held: Mapping[str, int]) -> str:
    """A clause that names the operations which hold most, given the bytes of each."""
    most = sorted(held.items(), key=lambda item: -item[1])[:_NAMED]
    named = ", ".join(f"`{name}` ({shown_bytes(size)})" for name, size in most if size)
    return f"; most is held by {named}" if named else ""


_LESS: Final = (
    "use fewer streams, smaller inputs, weights of fewer bits (`engine compress`), or HETERO with a second device"
)
