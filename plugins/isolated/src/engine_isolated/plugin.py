"""The ISOLATED plugin, which runs another device in a process of its own."""

from __future__ import annotations

from engine.plugin_api import (
    BlobReader,
    Config,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
)
from engine_isolated.properties import OWN_PROPERTIES

# What starts processes is imported when it is first needed, so that listing devices does not wait for it.


class IsolatedPlugin(Plugin):
    """Another device, in a process of its own."""

    name = "ISOLATED"
    version = "0.1.0"
    api_version = 2
    properties = OWN_PROPERTIES
    caches_parts = True

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A network in a process. Raises the errors of the device, `DeviceError` if its process ends or hangs."""
        from engine_isolated.network import IsolatedNetwork
        from engine_isolated.target import Target

        return IsolatedNetwork.compiled(self, config, model, Target.of(self.name, self.core, config))

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network in a process, from the section that `IsolatedNetwork.export_sections` wrote."""
        from engine_isolated.network import IsolatedNetwork
        from engine_isolated.target import Target

        return IsolatedNetwork.imported(self, config, blob, Target.of(self.name, self.core, config))

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The answer of the device, from a process."""
        from engine_isolated.query import answer_of
        from engine_isolated.target import Target

        return answer_of(model, Target.of(self.name, self.core, config))

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        return "Another device in a process of its own" if name == "FULL_DEVICE_NAME" else None
