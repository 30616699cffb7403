"""Whether the networks of the parts fit into the memory of their devices, and what fits if they do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import MemoryBudgetError
from engine.ir.sizes import known_bytes
from engine.lowering import is_static
from engine.plugin_api import ExecutableNetwork
from engine.properties import MEMORY_BUDGET
from engine_hetero.affinity.budget import NodeMemory
from engine_hetero.division.division import Division
from engine_hetero.network.compiling import TooLarge, described
from engine_hetero.parts.splitting import PartModel
from engine_hetero.query.model_graph import ModelGraph

_MIN_STEP: Final = 0.9
"""What may be allowed after a division that takes too much, at most, as a share of what it was estimated to take."""


def excess(
    budgets: Mapping[str, int], devices: Sequence[str], networks: Iterable[ExecutableNetwork | TooLarge]
) -> dict[str, int]:
    """The bytes that the parts on a device take together, for each device whose budget is less.

    A device with a part that exceeds its share of the budget is among them, even if all parts take less together.

    Args:
        devices: the device of each part.
    """
    taken = dict.fromkeys(budgets, 0)
    exceeded = set[str]()
    for device, network in zip(devices, networks, strict=True):
        if device in taken:
            if isinstance(network, TooLarge):
                taken[device] += network.error.needed
                exceeded.add(device)
            else:
                taken[device] += _needed(network)
    return {device: needed for device, needed in taken.items() if device in exceeded or needed > budgets[device]}


def less_allowed(
    allowed: Mapping[str, int], budgets: Mapping[str, int], needed: Mapping[str, int], division: Division
) -> dict[str, int]:
    """What devices may be given next: less than what was estimated, by the share that it was too little.

    A device keeps weights in forms of its own, so what it needs is known only after compiling.
    """
    memory, placement = NodeMemory.of(division.graph), division.placement
    found = dict(allowed)
    for device, nbytes in needed.items():
        on_device = placement.affinity == placement.claims.devices.index(device)
        estimated = memory.taken(np.asarray(on_device))
        share = min(_MIN_STEP, budgets[device] / nbytes)
        found[device] = int(min(allowed[device], estimated) * share)
    return found


def require_fitting(budgets: Mapping[str, int], devices: Sequence[str], networks: Sequence[ExecutableNetwork]) -> None:
    """Raise `MemoryBudgetError` if the parts on a device take more than its budget together."""
    for device, needed in excess(budgets, devices, networks).items():
        raise MemoryBudgetError(
            f"the parts on {device} take {needed} bytes together, and its {MEMORY_BUDGET.name} is {budgets[device]}; "
            "raise it, or compile the model again",
            needed=needed,
        )


def too_large(
    budgets: Mapping[str, int],
    needed: Mapping[str, int],
    parts: Sequence[PartModel],
    networks: Sequence[ExecutableNetwork | TooLarge],
) -> MemoryBudgetError:
    """The error for a model of which no part fits.

    Without a device in `needed`, the budget of a part is one that HETERO does not have, such as that of the device in
    ISOLATED.
    """
    if not needed:
        first = next(each for each in networks if isinstance(each, TooLarge))
        return MemoryBudgetError(
            f"{described(first.number, first.part)} cannot be compiled: {first.error}", needed=first.error.needed
        )
    device, nbytes = next(iter(needed.items()))
    found = [each for each in networks if isinstance(each, TooLarge) and each.part.device == device]
    why = f": {found[0].error}" if found else ""
    number, part = next((number, part) for number, part in enumerate(parts) if part.device == device)
    return MemoryBudgetError(
        f"{described(number, part)} does not fit, and no other device of the list may run it: {device} needs {nbytes} "
        f"bytes, and its {MEMORY_BUDGET.name} is {budgets[device]}{why}",
        needed=nbytes,
    )


def with_shares(
    configs: Sequence[Mapping[str, Any]], budgets: Mapping[str, int], parts: Sequence[PartModel], graph: ModelGraph
) -> list[Mapping[str, Any]]:
    """The configurations of the parts, in which those with open lengths share the budget of their device.

    What they need is known when an inference gives the lengths, part by part; of others, the sum is compared.
    """
    memory = NodeMemory.of(graph)
    estimated = [int(memory.weights[list(part.nodes)].sum() + memory.values[list(part.nodes)].max()) for part in parts]
    shared = list(configs)
    for device, budget in budgets.items():
        there = [number for number, part in enumerate(parts) if part.device == device]
        total = sum(estimated[number] for number in there)
        for number in there if len(there) > 1 else ():
            if not is_static(parts[number].model):
                share = max(1, budget * estimated[number] // max(1, total))
                shared[number] = {**shared[number], MEMORY_BUDGET.name: share}
    return shared


def _needed(network: ExecutableNetwork) -> int:
    """The peak of a network; with open lengths, its weights."""
    if any(known_bytes(port.type) is None for port in network.inputs):
        return network.memory_statistics().get("weights", 0)
    return network.memory_forecast().peak
