"""The check that a network fits into the MEMORY_BUDGET of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import MemoryBudgetError
from engine.limits.memory_budget import largest_clause, over_budget, weights_over_budget
from engine.properties import MEMORY_BUDGET

if TYPE_CHECKING:
    from engine.hosting.network import HostedNetwork
    from engine.ir import Model


def require_budget(network: HostedNetwork[Any], model: Model | None = None) -> None:
    """Raise `MemoryBudgetError` if a network takes more memory than its device may give it.

    If lengths are open, the weights are compared; the device compares the rest when it knows the lengths.
    """
    budget = network.config[MEMORY_BUDGET]
    what = f"{network.plugin.name}: `{network.name}`"
    if any(not _has_known_size(port.type) for port in network.inputs):
        weights = network.memory_statistics().get("weights", 0)
        if weights > budget:
            raise MemoryBudgetError(weights_over_budget(what, weights, budget, largest_of(model)), needed=weights)
        return
    forecast = network.memory_forecast()
    if forecast.peak > budget:
        raise MemoryBudgetError(over_budget(what, forecast, budget, largest_of(model)), needed=forecast.peak)


def largest_of(model: Model | None) -> str:
    """A clause that names the operations with the largest constants; "" if there are none."""
    if model is None:
        return ""
    from engine.ir import Constant, Result

    held: dict[str, int] = {}
    for node in model.ordered_nodes():
        constants = (value.node for value in node.input_values if value is not None)
        size = sum(each.byte_size for each in constants if isinstance(each, Constant))
        if size and not isinstance(node, Result):
            held[node.friendly_name] = size
    return largest_clause(held)


def _has_known_size(value_type: Any) -> bool:
    from engine.ir import TensorType

    return not isinstance(value_type, TensorType) or value_type.shape.is_static
