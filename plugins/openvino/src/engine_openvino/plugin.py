"""The plugin that `Core` discovers: OpenVINO's devices, compilation, import, and queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from engine.plugin_api import (
    BlobReader,
    Config,
    CoreHandle,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
)
from engine.properties import DEVICE_ID
from engine_openvino.properties import (
    ALLOW_NARROW_TYPES,
    EXPORT_COMPILED,
    INFERENCE_PRECISION_HINT,
    OPENVINO_VERSION,
    TRUST_BLOB,
)
from engine_openvino.runtime import Runtime, device_name

if TYPE_CHECKING:
    from engine.lowering import NodeAnswers

_CAPABILITIES = {"FP64", "FP32", "FP16", "BF16", "INT16", "INT8", "INT4", "BIN"}


class OpenvinoPlugin(Plugin):
    """The devices of OpenVINO: CPU, GPU and NPU."""

    name = "OPENVINO"
    version = "0.1.0"
    api_version = 2
    properties = (INFERENCE_PRECISION_HINT, ALLOW_NARROW_TYPES, EXPORT_COMPILED, TRUST_BLOB, OPENVINO_VERSION)

    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        self.runtime = Runtime()
        self._answers: dict[object, NodeAnswers[str]] = {}

    def device_ids(self) -> Sequence[str]:
        """OpenVINO's devices. Raises `DeviceNotFoundError` if the package openvino is not installed."""
        return self.runtime.device_ids()

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A new network from a model, which is not changed."""
        from engine_openvino.network import OpenvinoNetwork

        return OpenvinoNetwork.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from an exported graph."""
        from engine_openvino.network import OpenvinoNetwork

        return OpenvinoNetwork.imported(self, config, blob)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The support of each operation, as OpenVINO answers for it alone."""
        from engine.lowering import NodeAnswers
        from engine_openvino.query import ask, query

        device = device_name(self.resolve_device_id(config[DEVICE_ID]))
        made = NodeAnswers(lambda single: ask(single, self.runtime, device, config))
        answers = self._answers.setdefault((device, config["INFERENCE_PRECISION_HINT"]), made)
        return query(model, self.runtime, device, config, answers)

    def metric(self, name: str, device_id: str) -> object:
        """The facts about a device."""
        match name:
            case "ONLY_IF_NAMED":  # another runtime must not become a candidate by being installed
                return True
            case "ANSWERS_UNDEFINED":
                return False
            case "FULL_DEVICE_NAME":
                named = self.runtime.core().get_property(device_name(device_id), "FULL_DEVICE_NAME")
                return f"{named} (OpenVINO {self.runtime.version})"
            case "OPTIMIZATION_CAPABILITIES":
                found = self.runtime.core().get_property(device_name(device_id), "OPTIMIZATION_CAPABILITIES")
                return tuple(each for each in found if each in _CAPABILITIES)
            case OPENVINO_VERSION.name:
                return self.runtime.version
        return None

    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """The version, which compiled networks depend on."""
        return {"openvino": self.runtime.version}
