"""The contract between the engine and a device: `Plugin`, `ExecutableNetwork`, and the requests' stages.

A device is three subclasses and one entry point in the group `engine.plugins`:

- `Plugin`: compiles models for the device, imports compiled ones, and says what it supports;
- `ExecutableNetwork`: a compiled model; it creates requests and exports itself;
- `SyncInferRequest`: one inference, as stages. The asynchronous request, the queue, configuration, metrics,
  validation of tensors, export files and the errors' dress come from the engine.

Everything that these signatures mention can be imported from here. What a subclass may raise: an
`EngineError`, which reaches the user as it is; anything else is wrapped, with its cause.
"""

from __future__ import annotations

import enum
import functools
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, BinaryIO, ClassVar, Final, Protocol, TypeAlias, final

from engine.blob import BlobManifest, BlobReader, BlobWriter
from engine.errors import (
    BlobFormatError,
    Busy,
    Cancelled,
    DeadlineExceeded,
    DeviceError,
    DeviceNotFoundError,
    EngineError,
    InferError,
    InputError,
    PluginContractError,
    PluginError,
    PropertyError,
    UnsupportedError,
)
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape, Result, TensorType, ValueType
from engine.placement import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport, inconsistencies
from engine.properties import (
    CONFIG,
    DEVICE_ID,
    DEVICE_PROPERTIES,
    EXCLUSIVE_ASYNC_REQUESTS,
    METRIC,
    NETWORK_METRICS,
    NUM_STREAMS,
    PERF_COUNT,
    Config,
    Mutability,
    Property,
    PropertySet,
)
from engine.runtime import (
    AsyncInferRequest,
    Executor,
    InferResult,
    InlineExecutor,
    NodeProfile,
    Pipeline,
    Port,
    ProfilingInfo,
    Signature,
    Stage,
    StageProfile,
    SyncInferRequest,
    ThreadExecutor,
    shared_executor,
)
from engine.runtime.lifecycle import ForkSafeLock

__all__ = [
    "API_VERSION", "CONFIG", "METRIC", "AsyncInferRequest", "BlobManifest", "BlobReader", "BlobWriter", "Busy",
    "Cancelled", "Config", "CoreHandle", "Crossing", "DeadlineExceeded", "DeviceError", "DeviceNotFoundError",
    "ElementType", "EngineError", "ExecutableNetwork", "Executor", "InferError", "InferResult", "InlineExecutor",
    "InputError", "Model", "Mutability", "NodeProfile", "NodeRefusal", "PartialShape", "Pipeline", "PlacedSubgraph",
    "PlacementReport", "Plugin", "PluginContractError", "PluginError", "Port", "ProfilingInfo", "Property",
    "PropertyError", "PropertySet", "QueryResult", "RefusalCause", "Signature", "Stage", "StageProfile", "Support",
    "SupportLevel", "SyncInferRequest", "TensorType", "ThreadExecutor", "UnsupportedError", "ValueType",
    "compile_network", "engine_version", "import_network", "query_network", "shared_executor",
]  # fmt: skip

API_VERSION: Final = 1
"""The version of this contract; a plugin states the one that it was written for."""

Features: TypeAlias = Mapping[str, str | Sequence[str]]
"""What a blob needs, by kind: `{"isa": ["avx2", "fma"], "driver": "3.1"}`."""


class CoreHandle(Protocol):
    """What a plugin may ask of the `Core` that created it. Thread-safe."""

    def read_model(self, model: Any) -> Model:
        """Import an ONNX model from a path, bytes, a stream or a ModelProto."""

    def compile_model(self, model: Any, device: str, config: Mapping[str, object] | None = None) -> ExecutableNetwork:
        """Compile a model, or a path to one, for any device."""

    def import_model(
        self, blob: Any, device: str | None = None, config: Mapping[str, object] | None = None
    ) -> ExecutableNetwork:
        """Import a compiled network from a path, bytes or a stream."""

    def query_model(self, model: Any, device: str, config: Mapping[str, object] | None = None) -> QueryResult:
        """Ask a device which nodes of a model it supports."""

    def get_property(self, device: str, name: str) -> Any:
        """Read a metric or config value of a device."""

    @property
    def available_devices(self) -> Sequence[str]:
        """The devices that can be compiled for."""


class Plugin(ABC):
    """A kind of device. One instance a `Core`; all methods may be called from any thread.

    Created with the core's handle; a subclass that needs more defines `__init__(self, core)` and calls this one.
    Creating it should be quick and must not fail because no device is there: `device_ids` is for that.
    """

    name: ClassVar[str]
    """The device's name in device strings: upper-case letters, digits, underscores."""
    version: ClassVar[str]
    """The version of the plugin; blobs of another major or minor version are not imported."""
    api_version: ClassVar[int]
    """The `API_VERSION` that the plugin was written for, as a number."""
    properties: ClassVar[Iterable[Property[Any]]] = ()
    """The device's own metrics and config keys, beside those in `DEVICE_PROPERTIES`, which it may refine."""

    def __init__(self, core: CoreHandle) -> None:
        self.core = core
        self._declared = DEVICE_PROPERTIES.combined(self.properties)
        self._config = Config(self._declared, where=self.name)
        self._lock = ForkSafeLock()

    # -- what a device implements -------------------------------------------------------------------------

    @abstractmethod
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """Compile `model`, which must not be changed (clone it), with a complete, validated configuration.

        Raise `UnsupportedError` naming node and reason where the device cannot run a node.
        """

    @abstractmethod
    def query_model(self, model: Model, config: Config) -> QueryResult:
        """Say for every operation of `model`, by friendly name, how the device supports it. Must not change it."""

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """Rebuild a network from what its `export_sections` wrote; the manifest has been checked already.

        `config` is the exported configuration, overridden by the one given on import. Leave it undefined, and
        IMPORT_EXPORT_SUPPORT is False.
        """
        raise UnsupportedError(f"{self.name} cannot import compiled networks; compile the model instead")

    def device_ids(self) -> Sequence[str]:
        """The ids of the devices that are there now, the default first; none, and the plugin is unavailable."""
        return ("0",)

    def metric(self, name: str, device_id: str) -> object:
        """The value of a metric in `properties` for one of `device_ids`; None where it is the declared default.

        Override it for FULL_DEVICE_NAME, which is `name` otherwise, OPTIMIZATION_CAPABILITIES and your own.
        """
        return None

    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """What is here of the things that blobs may require (`ExecutableNetwork.requirements`).

        It is part of the key of networks in CACHE_DIR: include what changes a compilation, such as a driver's version.
        """
        return {}

    # -- what follows from it -----------------------------------------------------------------------------

    @final
    @property
    def declared(self) -> PropertySet:
        """Every property of the device: those of all devices, and its own."""
        return self._declared

    @final
    @property
    def config(self) -> Config:
        """The configuration that `set_config` made the default of this device."""
        return self._config

    @final
    def set_config(self, values: Mapping[str, object]) -> None:
        """Change the defaults of later compilations: all of `values`, or none. Raises `PropertyError`."""
        with self._lock:
            self._config = self._config.merged(values)

    @final
    def get_config(self, name: str) -> Any:
        """Return the default of a config key. Raises `PropertyError` listing the keys."""
        return self._config[name]

    @final
    def get_metric(self, name: str, device_id: str = "") -> Any:
        """Return a metric of a device. Raises `PropertyError` listing the metrics; `PluginContractError`."""
        where = self.name
        return _answer(self._declared, name, lambda: self._metric(name, device_id), where)

    def _metric(self, name: str, device_id: str) -> object:
        match name:
            case "SUPPORTED_METRICS":
                return self._declared.of(METRIC).names
            case "SUPPORTED_CONFIG_KEYS":
                return self._declared.of(CONFIG).names
            case "AVAILABLE_DEVICES":
                return self._device_ids()
            case "IMPORT_EXPORT_SUPPORT":
                return type(self).import_network is not Plugin.import_network
        value = self.metric(name, self.resolve_device_id(device_id))
        return self.name if value is None and name == "FULL_DEVICE_NAME" else value

    @final
    def get_property(self, name: str, device_id: str = "") -> Any:
        """Return a metric or a config key's default. Raises `PropertyError`, `PluginContractError`."""
        if self._declared.require(name, where=self.name).mutability is CONFIG:
            return self.get_config(name)
        return self.get_metric(name, device_id)

    @final
    def resolve_device_id(self, device_id: str) -> str:
        """Return `device_id`, or the first one where it is empty. Raises `DeviceNotFoundError`."""
        ids = self._device_ids()
        if not ids:
            raise DeviceNotFoundError(f"{self.name} finds no device on this machine")
        if device_id and device_id not in ids:
            raise DeviceNotFoundError(f"{self.name} has no device {device_id!r}; devices: {', '.join(ids)}")
        return device_id or ids[0]

    def _device_ids(self) -> tuple[str, ...]:
        with plugin_errors(self.name, "device_ids"):
            ids = self.device_ids()
        if not isinstance(ids, (list, tuple)) or not all(isinstance(each, str) and each for each in ids):
            raise PluginContractError(f"plugin {self.name}: device_ids returned {ids!r}, expected a list of ids: ['0']")
        return tuple(ids)


class ExecutableNetwork(ABC):
    """A model compiled for a device. Holds what its requests share; all methods are thread-safe.

    A subclass compiles in its constructor, after calling this one, and keeps the transformed graph, in whatever
    form, as `self.graph`.

    Args:
        plugin: whose network it is.
        config: the complete configuration.
        source: where names, inputs and outputs come from: the model as the user gave it, or a blob's manifest.
    """

    metrics: ClassVar[Iterable[Property[Any]]] = ()
    """The network's own metrics, beside `NETWORK_METRICS`."""

    graph: Any = None
    """The transformed graph that requests run."""

    def __init__(self, plugin: Plugin, config: Config, source: Model | BlobManifest) -> None:
        if not isinstance(plugin, Plugin) or not isinstance(config, Config):
            raise PluginContractError(
                f"{type(self).__name__}.__init__ must pass on the plugin and the Config that it was given; "
                f"got {type(plugin).__name__} and {type(config).__name__}"
            )
        self.plugin = plugin
        self.config = config
        self.name, inputs, outputs = _interface(source)
        self.signature = Signature(inputs, outputs, f"{plugin.name} network `{self.name}`")
        self.is_profiling = config[PERF_COUNT]
        self.loaded_from_cache = False
        self.task_executor = self._make_task_executor()
        self.callback_executor: Executor = ThreadExecutor(f"{plugin.name}:{self.name}:callbacks")
        self._declared = NETWORK_METRICS.combined(self.metrics)
        self._request_ids = itertools.count()
        self._creating = ForkSafeLock()
        self._idle_requests: list[SyncInferRequest] = []

    def _make_task_executor(self) -> Executor:
        if self.config[EXCLUSIVE_ASYNC_REQUESTS]:
            device_id = self.plugin.resolve_device_id(self.config[DEVICE_ID])
            return shared_executor(f"{self.plugin.name}.{device_id}")
        return ThreadExecutor(f"{self.plugin.name}:{self.name}", self.config[NUM_STREAMS] or 1)

    # -- what a device implements -------------------------------------------------------------------------

    @abstractmethod
    def create_infer_request_impl(self) -> SyncInferRequest:
        """Return a new synchronous request. Never called by two threads at once."""

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """The executors on which the stages of an asynchronous request run, in order.

        By default all stages run on the task executor. A device with a queue of its own puts host and device
        stages on different executors, so that stages of several requests overlap. Adjacent stages of one executor
        run without a hop between them.
        """
        executor = self.task_executor
        stages = request.infer_preprocess, request.start_pipeline, request.wait_pipeline, request.infer_postprocess
        return [(executor, stage) for stage in stages]

    def export_sections(self, writer: BlobWriter) -> None:
        """Add what `Plugin.import_network` needs to rebuild this network."""
        raise UnsupportedError(f"{self.plugin.name} cannot export compiled networks")

    def requirements(self) -> Features:
        """What a machine must have for this network's blob to run there; compared with `host_features`."""
        return {}

    def metric(self, name: str) -> object:
        """The value of a metric in `metrics` or `NETWORK_METRICS`; None where it is the declared default."""
        return None

    # -- inference ----------------------------------------------------------------------------------------

    @final
    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs, in order."""
        return self.signature.inputs

    @final
    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs, in order."""
        return self.signature.outputs

    @final
    def input_index(self, name: str) -> int:
        """Return the index of an input. Raises `InputError` listing the inputs."""
        return self.signature.find_input(name)

    @final
    def output_index(self, name: str) -> int:
        """Return the index of an output. Raises `InputError` listing the outputs."""
        return self.signature.find_output(name)

    @final
    def __call__(self, inputs: object = None) -> InferResult:
        """Run one inference in this thread: `network({"x": array})["y"]`.

        `inputs`: a mapping of names to values, a list of values in input order, or the one array; none for a network
        that takes none. Threads that call at once each use a request of their own, kept for the next call. Raises
        what `SyncInferRequest.infer` does.
        """
        request = self._idle_request() or self._new_request()
        try:
            return request.infer(inputs)
        finally:
            request.clear_tensors()
            self._idle_requests.append(request)

    def _idle_request(self) -> SyncInferRequest | None:
        try:
            return self._idle_requests.pop()
        except IndexError:  # asking first would race with other threads
            return None

    @final
    def create_infer_request(self) -> AsyncInferRequest:
        """Return a new request; it keeps the network alive."""
        request = self._new_request()
        with plugin_errors(self.plugin.name, "pipeline"):
            pipeline = self.pipeline(request)
        return AsyncInferRequest(request, pipeline, self.callback_executor, self)

    def _new_request(self) -> SyncInferRequest:
        with self._creating, plugin_errors(self.plugin.name, "create_infer_request_impl"):
            request = self.create_infer_request_impl()
        if not isinstance(request, SyncInferRequest):
            raise _wrong_return(self.plugin.name, "create_infer_request_impl", request, "SyncInferRequest")
        if not hasattr(request, "signature"):
            raise _not_initialised(self.plugin.name, request, "network")
        return request

    @final
    def next_request_id(self) -> int:
        """Return a number that no other request of this network has."""
        return next(self._request_ids)

    # -- properties and export ----------------------------------------------------------------------------

    @final
    def get_config(self, name: str) -> Any:
        """Return a config value that the network was compiled or imported with. Raises `PropertyError`."""
        return self.config[name]

    @final
    def get_metric(self, name: str) -> Any:
        """Return a metric. Raises `PropertyError` listing the metrics; `PluginContractError`."""
        where = f"{self.plugin.name}: network `{self.name}`"
        return _answer(self._declared, name, lambda: self._metric(name), where)

    def _metric(self, name: str) -> object:
        match name:
            case "SUPPORTED_METRICS":
                return self._declared.of(METRIC).names
            case "SUPPORTED_CONFIG_KEYS":
                return tuple(self.config)
            case "NETWORK_NAME":
                return self.name
            case "LOADED_FROM_CACHE":
                return self.loaded_from_cache
        value = self.metric(name)
        if value is None and name == "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
            return self.config[NUM_STREAMS] or 1
        if value is None and name == "EXECUTION_DEVICES":
            device_id = self.config[DEVICE_ID]
            return (f"{self.plugin.name}.{device_id}" if device_id else self.plugin.name,)
        return value

    @final
    def get_property(self, name: str) -> Any:
        """Return a metric or a config value. Raises `PropertyError`, `PluginContractError`."""
        if name in self._declared:
            return self.get_metric(name)
        if name in self.config:
            return self.get_config(name)
        known = self._declared.combined(self.config.properties)
        return known.require(name, where=f"network `{self.name}`")  # raises, listing both kinds

    @final
    def export_model(self, target: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the compiled network to a path, where it appears whole or not at all, or to a binary stream.

        Raises `BlobError` where writing fails, `UnsupportedError` where the device cannot export.
        """
        with plugin_errors(self.plugin.name, "exporting a network"):
            writer = BlobWriter(self._manifest())
            self.export_sections(writer)
        if isinstance(target, (str, os.PathLike)):
            writer.write_file(target)
        elif hasattr(target, "write"):
            writer.write(target)
        else:
            raise PluginError(f"a network is exported to a path or a binary stream; got {type(target).__name__}")

    def _manifest(self) -> BlobManifest:
        return BlobManifest(
            device=self.plugin.name,
            plugin_name=self.plugin.name,
            plugin_version=self.plugin.version,
            engine_version=engine_version(),
            api_version=str(API_VERSION),
            requirements=self.requirements(),
            config=self.config.to_json(),
            inputs=[port.to_json() for port in self.inputs],
            outputs=[port.to_json() for port in self.outputs],
            metadata={"network_name": self.name},
        )

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        return f"<{self.plugin.name} network `{self.name}` ({inputs}) -> ({outputs})>"


# -- what a device answers to a query -----------------------------------------------------------------------


class SupportLevel(enum.Enum):
    """How a device runs a node."""

    NATIVE = "native"
    REFERENCE = "reference"
    """Correctly and slowly, on the host's reference evaluator."""
    REFUSED = "refused"


class RefusalCause(enum.StrEnum):
    """Why a device does not run a node, for programs: the same thing has the same cause on every device."""

    OP = "op"
    """The device has no kernel for the operator, or not for the outputs of it that are read."""
    ELEMENT_TYPE = "element type"
    RANK = "rank"
    """The number of dimensions of a value."""
    SHAPE = "shape"
    """The lengths of a value."""
    ATTRIBUTE = "attribute"
    DYNAMIC_SHAPE = "dynamic shape"
    """A rank or a length is known only during an inference."""
    CONSTANT = "constant"
    """An input is computed during an inference and must be a constant."""
    PLACEMENT = "placement"
    """A device that runs on others found no way to place the node."""


@dataclass(frozen=True, slots=True)
class Support:
    """How a device runs one node, and why not better.

    `cause` is for programs; `reason` is a sentence for people: what was found, what is supported, and the way out.
    """

    level: SupportLevel
    cause: RefusalCause | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        is_refused = self.level is SupportLevel.REFUSED
        if not isinstance(self.cause, RefusalCause) and (is_refused or self.cause is not None):
            causes = ", ".join(f"RefusalCause.{cause.name}" for cause in RefusalCause)
            raise PluginContractError(
                f"a node is {self.level.value} without a cause: got {self.cause!r}; expected one of {causes}"
            )

    @classmethod
    def native(cls) -> Support:
        """The device runs the node itself."""
        return cls(SupportLevel.NATIVE)

    @classmethod
    def reference(cls, cause: RefusalCause | None = None, reason: str = "") -> Support:
        """The node runs on the reference evaluator."""
        return cls(SupportLevel.REFERENCE, cause, reason)

    @classmethod
    def refused(cls, cause: RefusalCause, reason: str) -> Support:
        """The device does not run the node."""
        return cls(SupportLevel.REFUSED, cause, reason)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A device's answer for every operation of a model, by friendly name.

    Parameters, constants and results may be left out.

    `atoms` are sets of nodes that the device supports only together: no partitioner separates them.
    `placement` is what a device that runs on others tells of how it would divide the model among them.
    """

    nodes: Mapping[str, Support]
    atoms: tuple[frozenset[str], ...] = field(default=())
    placement: PlacementReport | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, Mapping) or not all(isinstance(s, Support) for s in self.nodes.values()):
            raise PluginContractError(f"a QueryResult maps friendly names to Support; got {self.nodes!r:.120}")
        if not isinstance(self.atoms, tuple) or not all(isinstance(atom, frozenset) for atom in self.atoms):
            raise PluginContractError(f"a QueryResult's atoms are a tuple of frozensets; got {self.atoms!r:.120}")
        if not isinstance(self.placement, (PlacementReport, type(None))):
            raise PluginContractError(f"a QueryResult's placement is a PlacementReport; got {self.placement!r:.120}")

    def at(self, level: SupportLevel) -> dict[str, Support]:
        """Return the nodes of one level."""
        return {name: support for name, support in self.nodes.items() if support.level is level}

    @property
    def is_supported(self) -> bool:
        """Whether the device runs every node."""
        return not self.at(SupportLevel.REFUSED)

    def __getitem__(self, friendly_name: str) -> Support:
        return self.nodes[friendly_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


# -- the engine's side: how a core calls a plugin -----------------------------------------------------------


def compile_network(plugin: Plugin, model: Model, config: Mapping[str, object] | None = None) -> ExecutableNetwork:
    """Compile with the device's defaults overridden by `config`; only `EngineError`s are raised."""
    merged = _complete_config(plugin, plugin.config.merged(config))
    with plugin_errors(plugin.name, f"compiling `{model.name}`"):
        network = plugin.compile_model(model, merged)
    return _checked_network(plugin, network, "compile_model")


def import_network(plugin: Plugin, blob: BlobReader, config: Mapping[str, object] | None = None) -> ExecutableNetwork:
    """Import with the device's defaults, overridden by the exported configuration, overridden by `config`.

    The blob's manifest must have been checked for this plugin. Only `EngineError`s are raised.
    """
    exported = Config.from_json(plugin.declared, blob.manifest.config, where=plugin.name)
    merged = _complete_config(plugin, plugin.config.merged(exported).merged(config))
    with plugin_errors(plugin.name, "importing a network"):
        network = plugin.import_network(blob, merged)
    return _checked_network(plugin, network, "import_network")


def query_network(plugin: Plugin, model: Model, config: Mapping[str, object] | None = None) -> QueryResult:
    """Query, and check that the answer covers exactly the model's nodes; only `EngineError`s are raised."""
    merged = _complete_config(plugin, plugin.config.merged(config))
    nodes = model.ordered_nodes()
    with plugin_errors(plugin.name, f"querying `{model.name}`"):
        answer = plugin.query_model(model, merged)
    if not isinstance(answer, QueryResult):
        raise _wrong_return(plugin.name, "query_model", answer, "QueryResult")
    if model.ordered_nodes() != nodes:
        raise PluginContractError(f"plugin {plugin.name}: query_model changed `{model.name}`; let it clone the model")
    names = {node.friendly_name for node in nodes}
    operations = {node.friendly_name for node in nodes if not isinstance(node, (Parameter, Constant, Result))}
    answered = answer.nodes.keys() | {name for atom in answer.atoms for name in atom}
    if wrong := (operations - answer.nodes.keys()) | (answered - names):
        listed = ", ".join(sorted(wrong)[:10])
        raise PluginContractError(
            f"plugin {plugin.name}: query_model must answer for each of the model's operations, and no others; "
            f"see {listed}"
        )
    if answer.placement is not None and (faults := inconsistencies(answer.placement)):
        listed = "; ".join(faults[:3])
        raise PluginContractError(f"plugin {plugin.name}: query_model reports a placement that cannot be: {listed}")
    return answer


@contextmanager
def plugin_errors(plugin: str, doing: str) -> Iterator[None]:
    """Let `EngineError`s pass, and wrap every other exception of a plugin with its cause."""
    try:
        yield
    except EngineError:
        raise
    except Exception as e:
        raise PluginError(f"plugin {plugin}: {doing} failed: {type(e).__name__}: {e}") from e


@functools.cache
def engine_version() -> str:
    """Return the version of the engine, which blobs record; "0+source" where it is imported uninstalled."""
    try:
        return metadata.version("engine-sdk")
    except metadata.PackageNotFoundError:
        return "0+source"


def _complete_config(plugin: Plugin, config: Config) -> Config:
    plugin.resolve_device_id(config[DEVICE_ID])
    return config


def _checked_network(plugin: Plugin, network: object, method: str) -> ExecutableNetwork:
    if not isinstance(network, ExecutableNetwork):
        raise _wrong_return(plugin.name, method, network, "ExecutableNetwork")
    if not hasattr(network, "signature"):
        raise _not_initialised(plugin.name, network, "plugin, config, source")
    return network


def _not_initialised(plugin: str, made: object, arguments: str) -> PluginContractError:
    name = type(made).__name__
    return PluginContractError(f"plugin {plugin}: {name}.__init__ must call super().__init__({arguments})")


def _wrong_return(plugin: str, method: str, value: object, expected: str) -> PluginContractError:
    return PluginContractError(f"plugin {plugin}: {method} returned {type(value).__name__}, expected {expected}")


def _answer(declared: PropertySet, name: str, ask: Callable[[], object], where: str) -> Any:
    found = declared.require(name, METRIC, where=where)
    with plugin_errors(where, f"metric {name}"):
        value = ask()
    if value is None:
        value = found.default
    try:
        return found.validate(value)
    except PropertyError as e:
        raise PluginContractError(f"plugin {where} reports a wrong metric: {e}") from e


def _interface(source: Model | BlobManifest) -> tuple[str, list[Port], list[Port]]:
    if isinstance(source, Model):
        return source.name, [Port.of(p) for p in source.parameters], [Port.of(r) for r in source.results]
    if not isinstance(source, BlobManifest):
        raise PluginContractError(f"a network's source is the model or the blob's manifest; got {source!r:.80}")
    name = source.metadata.get("network_name")
    if not isinstance(name, str):
        raise BlobFormatError(f"the manifest's metadata has no network_name; got {name!r}")
    inputs, outputs = ([Port.from_json(port) for port in ports] for ports in (source.inputs, source.outputs))
    return name, inputs, outputs
