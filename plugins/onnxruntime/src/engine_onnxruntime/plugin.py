"""The ONNXRUNTIME plugin: whole models, or the subgraphs that HETERO gives it, in sessions of onnxruntime."""

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
    RemoteContext,
    SupportLevel,
    UnsupportedError,
)
from engine_onnxruntime.properties import (
    DRIVER_VERSION,
    EXPORT_COMPILED,
    PRECISION,
    PROVIDER_OPTIONS,
    SESSION_OPTIONS,
    TRUST_BLOB,
)
from engine_onnxruntime.runtime import SessionPlan, load_runtime, providers

# What compiles and queries is imported when it is first needed, so that listing devices does not wait for it.
if TYPE_CHECKING:
    from engine_onnxruntime.answers import Answers


class OnnxRuntimePlugin(Plugin):
    """The execution providers of the installed onnxruntime, each as a device."""

    name = "ONNXRUNTIME"
    version = "0.1.0"
    api_version = 2
    properties = (PRECISION, PROVIDER_OPTIONS, SESSION_OPTIONS, EXPORT_COMPILED, TRUST_BLOB, DRIVER_VERSION)

    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        self._answers: Answers | None = None

    def device_ids(self) -> Sequence[str]:
        """One for each provider. Raises `DeviceNotFoundError` if the runtime is not installed."""
        return tuple(providers())

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A session of the model. Raises `UnsupportedError` with the node that a query refuses, if there is one."""
        from engine_onnxruntime.network import OnnxRuntimeNetwork
        from engine_onnxruntime.refusals import refusal

        for node in model.ordered_nodes():
            if (wrong := refusal(node)) is not None:
                raise UnsupportedError(f"ONNXRUNTIME refuses `{node.friendly_name}`: {wrong.reason}")
        try:
            return OnnxRuntimeNetwork.compiled(self, config, model, self._plan(config))
        except UnsupportedError as e:
            for name, support in self.query_model(model, config).at(SupportLevel.REFUSED).items():
                raise UnsupportedError(f"ONNXRUNTIME refuses `{name}`: {support.reason}") from e
            raise UnsupportedError(f"model `{model.name}`, of which each node alone is supported: {e}") from e

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A session of an exported model; the engine has compared the versions of the runtime."""
        from engine_onnxruntime.network import OnnxRuntimeNetwork

        return OnnxRuntimeNetwork.imported(self, config, blob, self._plan(config))

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """For each operation, whether the runtime loads a model of it alone."""
        from engine_onnxruntime.answers import Answers

        if self._answers is None:
            self._answers = Answers()
        return self._answers.of(model, self._plan(config))

    def create_context(self, device: str, config: Config, handles: Mapping[str, object]) -> RemoteContext:
        """The memory of a provider, for tensors that stay there."""
        from engine_onnxruntime.tensors import OnnxRuntimeContext

        plan = self._plan(config)
        return OnnxRuntimeContext(self, device, plan.device_id, plan.provider_options, handles)

    def _plan(self, config: Config) -> SessionPlan:
        return SessionPlan.of(config, self.resolve_device_id(config["DEVICE_ID"]))

    def metric(self, name: str, device_id: str) -> object:
        """The facts about a provider; None leaves the declared default."""
        match name:
            case "FULL_DEVICE_NAME":
                return f"{providers()[device_id]} of onnxruntime {load_runtime().__version__}"
            case "OPTIMIZATION_CAPABILITIES":
                return ("FP32", "INT8", "FP64") if device_id == "CPU" else ("FP32", "FP16", "INT8")
            case "DRIVER_VERSION":
                return str(load_runtime().__version__)
            case "ONLY_IF_NAMED":  # it must not change results because it was installed
                return True
            case "ANSWERS_UNDEFINED":
                return False
        return None

    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """What blobs require: this version of the runtime, and the provider."""
        return {"onnxruntime": str(load_runtime().__version__), "execution provider": tuple(providers())}
