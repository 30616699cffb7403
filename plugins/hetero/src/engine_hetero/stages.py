"""The stages of compiling a model: query, affinity, division, parts, wiring, network. Each stage is a folder.

Each stage takes what the one before it returns: the devices' claims, a placement of the operations, a division into
subgraphs, a model for each subgraph, their connections, and a network for each.
"""

from __future__ import annotations

from engine.plugin_api import Config, CoreHandle, ExecutableNetwork, Model
from engine.startup import dataclass
from engine_hetero.affinity.placing import place
from engine_hetero.device_list import DeviceList, new_contexts
from engine_hetero.division.dividing import divide
from engine_hetero.division.division import Division
from engine_hetero.network.compiling import Compiler
from engine_hetero.parts.splitting import PartModel, split
from engine_hetero.query.canonical import canonical_model
from engine_hetero.query.claims import Claims
from engine_hetero.wiring.connecting import connect
from engine_hetero.wiring.wiring import Wiring


@dataclass(frozen=True, slots=True)
class CompiledParts:
    """A division of a model, the connections of its parts, and the network of each."""

    division: Division
    wiring: Wiring
    networks: tuple[ExecutableNetwork, ...]


def compiled(core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> CompiledParts:
    """Take a model through all stages.

    A device that claims nodes but refuses their subgraph is queried again, and the model is divided again by its new
    answer.
    """
    compiler = Compiler(core, devices)
    claims = Claims.asked(core, canonical_model(model), devices)
    while True:
        division, parts = divided(core, model, claims, devices, config)
        wiring = connect(division.graph, parts, division.part_seconds or (0.0,))
        contexts = new_contexts(core, devices, wiring.devices_that_read_themselves)
        configs = devices.configs_of_parts([part.device for part in parts])
        networks, refused = compiler.compile(parts, contexts, configs)
        if not refused:
            return CompiledParts(division, wiring, tuple(networks))
        claims = claims.without(compiler.ask_again(refused))


def divided(
    core: CoreHandle, model: Model, claims: Claims, devices: DeviceList, config: Config
) -> tuple[Division, tuple[PartModel, ...]]:
    """The stages between the devices' answers and the models of the parts."""
    division = divide(place(core, model, claims, devices, config), config)
    return division, split(division.graph, division.members, division.devices or claims.devices[:1])
