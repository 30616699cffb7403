"""The AUTO plugin, which compiles for several devices and chooses one."""

from __future__ import annotations

from engine.plugin_api import (
    BlobReader,
    Config,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
    SupportLevel,
)
from engine_auto.devices import DeviceList
from engine_auto.properties import OWN_PROPERTIES

# Networks and measuring are imported when they are first needed, so that listing devices does not wait for it.


class AutoPlugin(Plugin):
    """Runs a model on the device that is fastest for it."""

    name = "AUTO"
    version = "0.1.0"
    api_version = 2
    oldest_blob_version = "0.1"
    properties = OWN_PROPERTIES
    caches_parts = True
    chooses_devices = True

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A network on the device that is ready first; others are compiled for and measured in the background."""
        from engine_auto.network import AutoNetwork

        return AutoNetwork.compiled(self, config, model, DeviceList(self.name, self.core, config))

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network on the device that was chosen where the blob was exported."""
        from engine_auto.network import AutoNetwork

        return AutoNetwork.imported(self, config, blob)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The answer of the first device that supports all operations, otherwise of the one that refuses the fewest."""
        devices = DeviceList(self.name, self.core, config)
        answers = []
        for device in devices.one_by_one():
            answer = self.core.query_model(model, device.name, device.config)
            if answer.is_supported:
                return answer
            answers.append(answer)
        return min(answers, key=lambda answer: len(answer.at(SupportLevel.REFUSED)))

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        return "The fastest device for each model" if name == "FULL_DEVICE_NAME" else None
