"""The stages of compiling a model: query, affinity, division, parts, wiring, network. Each stage is a folder.

Each stage takes what the one before it returns: the devices' claims, a placement of the operations, a division into
subgraphs, a model for each subgraph, their connections, and a network for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Final

from engine.errors import MemoryBudgetError
from engine.plugin_api import Config, CoreHandle, ExecutableNetwork, Model
from engine.startup import dataclass
from engine_hetero.affinity.placing import place
from engine_hetero.device_list import DeviceList, new_contexts
from engine_hetero.division.dividing import divide
from engine_hetero.division.division import Division
from engine_hetero.network.compiling import Compiler, TooLarge
from engine_hetero.network.fitting import excess, less_allowed, too_large, with_shares
from engine_hetero.parts.splitting import PartModel, split
from engine_hetero.query.canonical import canonical_model
from engine_hetero.query.claims import Claims
from engine_hetero.wiring.connecting import connect
from engine_hetero.wiring.wiring import Wiring

_MAX_ATTEMPTS: Final = 8
"""After so many divisions that take too much, a device gets only what no other one runs."""


@dataclass(frozen=True, slots=True)
class CompiledParts:
    """A division of a model, the connections of its parts, and the network of each."""

    division: Division
    wiring: Wiring
    networks: tuple[ExecutableNetwork, ...]


def compiled(core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> CompiledParts:
    """Take a model through all stages.

    A device that claims nodes but refuses their subgraph is queried again, and the model is divided again by its new
    answer. A device whose networks take more than its budget gets less.

    Raises `MemoryBudgetError` if a device has to run more than fits.
    """
    compiler = Compiler(core, devices)
    claims = Claims.asked(core, canonical_model(model), devices)
    allowed, largest = dict(devices.budgets), None
    for attempt in count():
        try:
            division, parts = divided(core, model, claims, devices, config, allowed)
        except MemoryBudgetError as e:
            raise (largest or e) from (e if largest else None)
        wiring = connect(division.graph, parts, division.part_seconds or (0.0,))
        contexts = new_contexts(core, devices, wiring.devices_that_read_themselves)
        names = [part.device for part in parts]
        configs = devices.configs_of_parts(names)
        if devices.budgets:
            configs = with_shares(configs, devices.budgets, parts, division.graph)
        networks, refused = compiler.compile(parts, contexts, configs)
        if refused:
            claims = claims.without(compiler.ask_again(refused))
            continue
        needed = excess(devices.budgets, names, networks)
        made = [each for each in networks if not isinstance(each, TooLarge)]
        if not needed and len(made) == len(networks):
            return CompiledParts(division, wiring, tuple(made))
        largest = too_large(devices.budgets, needed, parts, networks)
        if not needed:
            raise largest
        allowed = less_allowed(allowed, devices.budgets, needed, division)
        if attempt >= 2 * _MAX_ATTEMPTS:  # operations without any bytes always fit by the estimate
            raise largest
        if attempt >= _MAX_ATTEMPTS:
            allowed |= dict.fromkeys(needed, 0)
    raise AssertionError("unreachable")


def divided(
    core: CoreHandle, model: Model, claims: Claims, devices: DeviceList, config: Config, allowed: Mapping[str, int]
) -> tuple[Division, tuple[PartModel, ...]]:
    """The stages between the devices' answers and the models of the parts; `allowed` are the bytes of devices."""
    division = divide(place(core, model, claims, devices, config, allowed), config)
    return division, split(division.graph, division.members, division.devices or claims.devices[:1])
