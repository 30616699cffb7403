"""The HETERO plugin, which divides a model among several devices."""

from __future__ import annotations

from engine.plugin_api import (
    BlobReader,
    Config,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
)
from engine.properties import DEVICE_PRIORITIES
from engine.startup import paused_collector
from engine_hetero.device_list import DeviceList
from engine_hetero.properties import DUMP_GRAPH, OWN_PROPERTIES

# The partitioner is imported when it is first needed, so that listing devices does not wait for it.


class HeteroPlugin(Plugin):
    """Several other devices, combined into one device."""

    name = "HETERO"
    version = "0.1.0"
    api_version = 2
    oldest_blob_version = "0.1"
    properties = (DEVICE_PRIORITIES, *OWN_PROPERTIES)
    compile_effects = (DUMP_GRAPH.name,)

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A network of parts, each compiled for its device."""
        from engine_hetero.network.network import HeteroNetwork
        from engine_hetero.report.dump import GraphDump
        from engine_hetero.stages import compiled
        from engine_hetero.wiring.certificate import Certificate

        devices, dump = self._devices(config), GraphDump.of(config)
        with paused_collector():  # it would visit the parts compiled so far again and again
            parts = compiled(self.core, model, devices, config)
            if dump is not None:
                dump.write(parts.division, config, model)
            certificate = Certificate.of(parts.division, devices.budgets)
            return HeteroNetwork.compiled(self, config, model, parts.wiring, parts.networks, certificate)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from the sections that `HeteroNetwork.export_sections` wrote."""
        from engine_hetero.network.network import HeteroNetwork

        return HeteroNetwork.imported(self, config, blob, self._devices(config))

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """How each operation would run, on which device, in which subgraph, and why not elsewhere."""
        from engine_hetero.report.explain import answer

        return answer(self.core, model, self._devices(config), config)

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        match name:
            case "FULL_DEVICE_NAME":
                return "One model over several devices"
        return None

    def _devices(self, config: Config) -> DeviceList:
        return DeviceList.of(self.name, self.core, config)
