"""How CPU compiles a network within a MEMORY_BUDGET: what it gives up, in this order, until the network fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from engine.errors import MemoryBudgetError
from engine.ir.sizes import joined_bytes
from engine.limits.memory_budget import largest_clause, over_budget, weights_over_budget
from engine.plugin_api import Config
from engine.properties import INFERENCE_NUM_THREADS, MEMORY_BUDGET, NUM_STREAMS
from engine.startup import dataclass
from engine_cpu.compiler import logger
from engine_cpu.memory import forecast, kept_constants
from engine_cpu.weights import OverLimit, WeightLimit

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.lowering import Shapes
    from engine.plugin_api import MemoryForecast, Signature
    from engine_cpu.families import BoundFamily
    from engine_cpu.program import Program
    from engine_cpu.weights import WeightStore

_REMEMBERED: Final = 1024
"""The shapes of this many inferences are known to fit."""


class Budgeted(Protocol):
    """The members of a network that are compared with a budget."""

    name: str
    is_static: bool
    weights: WeightStore
    graph: Model

    def memory_forecast(self) -> MemoryForecast:
        """The memory of inferences, if all lengths are known."""

    def own_weights(self) -> int:
        """The bytes of constants that take memory for any lengths."""


NetworkT = TypeVar("NetworkT", bound=Budgeted, covariant=True)


class Compile(Protocol[NetworkT]):
    """Compiles a network."""

    def __call__(self, config: Config, *, is_direct: bool = False, limit: WeightLimit | None = None) -> NetworkT:
        """With a configuration, without Winograd's algorithm if it `is_direct`, and with a limit for packed weights."""


def within_budget(config: Config, stated: Config, compiled: Compile[NetworkT]) -> NetworkT:
    """The first network of `compiled` that fits into the budget of a configuration.

    `stated`: the user's configuration, without the number of streams that follows from a hint.

    Raises `MemoryBudgetError`, which says what would fit. While it compiles, packed weights never take more than the
    budget and one more array.
    """
    budget = config[MEMORY_BUDGET]
    savings = list(_savings(config, stated))
    network = None
    for number, (what, changed, is_direct) in enumerate(savings):
        limit = WeightLimit(budget, counts_on=number == len(savings) - 1)
        try:
            network = compiled(changed, is_direct=is_direct, limit=limit)
        except OverLimit:
            continue
        if _needed_bytes(network) <= budget:
            limit.counts_on = False  # for plans that inferences make
            if what:
                logger.info("%s: compiled %s, to fit into %s", network.name, what, MEMORY_BUDGET.name)
            return network
    assert network is not None
    raise _error(network, budget, savings[-1][0])


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """Compares the programs of a network with open lengths with its budget, as inferences make and use them.

    It refers to the parts of the network, not to the network: a reference cycle would delay freeing it.
    """

    network: str
    signature: Signature
    streams: int
    budget: int
    weights: WeightStore
    graph: Model
    _fitting: set[Shapes] = field(default_factory=set)

    def require(self, program: Program | BoundFamily, shapes: Shapes) -> None:
        """Raise `MemoryBudgetError` if inferences with inputs of these shapes take more than the budget."""
        if shapes in self._fitting:
            return
        known = tuple(() if shape is None else shape for shape in shapes)
        found = forecast(self.signature, self.streams, program, known, kept_constants(self.weights, self.graph))
        if found.peak > self.budget:
            raise MemoryBudgetError(over_budget(self._what(shapes), found, self.budget), needed=found.peak)
        if len(self._fitting) >= _REMEMBERED:
            self._fitting.clear()
        self._fitting.add(shapes)

    def over_limit(self, shapes: Shapes) -> MemoryBudgetError:
        """The error for a program that needs weights in another form than those that exist."""
        weights = joined_bytes(kept_constants(self.weights, self.graph).own)
        return MemoryBudgetError(
            f"{self._what(shapes)} does not fit into {MEMORY_BUDGET.name} ({self.budget} bytes): it needs weights in "
            f"another form beside those that take {weights} bytes now; give it more, or compile the model for these "
            "shapes alone"
        )

    def _what(self, shapes: Shapes) -> str:
        listed = ", ".join(str(list(shape or ())) for shape in shapes)
        return f"CPU: an inference of {self.network} with inputs of shapes {listed}"


def _needed_bytes(network: Budgeted) -> int:
    """The peak; with open lengths that of the weights, since programs are compared when they are made."""
    return network.memory_forecast().peak if network.is_static else network.own_weights()


def _savings(config: Config, stated: Config) -> Iterator[tuple[str, Config, bool]]:
    """What is tried: nothing; then one stream, direct convolutions, one thread, each in addition."""
    given: list[str] = []
    yield "", config, False
    if not stated[NUM_STREAMS] and config[NUM_STREAMS] > 1:
        config = config.merged({NUM_STREAMS.name: 1})
        given.append("for one stream")
        yield given[0], config, False
    given.append("without Winograd's algorithm")
    yield ", ".join(given), config, True
    if not stated[INFERENCE_NUM_THREADS]:
        given.append("for one thread")
        yield ", ".join(given), config.merged({INFERENCE_NUM_THREADS.name: 1}), True


def _error(network: Budgeted, budget: int, what: str) -> MemoryBudgetError:
    held = largest_clause(network.weights.held(network.graph))
    where = f"CPU: `{network.name}`, even {what},"
    if network.is_static:
        forecast = network.memory_forecast()
        return MemoryBudgetError(over_budget(where, forecast, budget, held), needed=forecast.peak)
    weights = network.own_weights()
    return MemoryBudgetError(weights_over_budget(where, weights, budget, held), needed=weights)
