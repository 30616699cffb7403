"""The contract between the engine and a device: three classes that a plugin's author implements.

A device is a Python package with an entry point in the group `engine.plugins`, and three subclasses:

| class               | hook                        |          | what it does                                        |
|---------------------|-----------------------------|----------|-----------------------------------------------------|
| `Plugin`            | `compile_model`             | required | compiles a model for the device                     |
|                     | `query_model`               | required | reports how the device runs each operation          |
|                     | `import_network`            | optional | rebuilds an exported network                        |
|                     | `create_context`            | optional | makes a context, for tensors in the device's memory |
|                     | `compile_in_context`        | optional | compiles a model for a context                      |
|                     | `import_in_context`         | optional | rebuilds an exported network for a context          |
|                     | `device_ids`                | optional | lists the devices of this machine                   |
|                     | `metric`                    | optional | returns the device's metrics                        |
|                     | `host_features`             | optional | returns this machine's features that blobs require  |
|                     | `check_blob`                | optional | says whether a blob runs on this machine            |
| `ExecutableNetwork` | `create_infer_request_impl` | required | makes a request                                     |
|                     | `pipeline`                  | optional | assigns stages to executors                         |
|                     | `export_sections`           | optional | writes what `import_network` reads                  |
|                     | `requirements`              | optional | returns what a machine needs to import the network  |
|                     | `preferences`               | optional | returns what makes it as fast as a new compilation  |
|                     | `metric`                    | optional | returns the network's metrics                       |
|                     | `memory`                    | optional | returns the bytes that the network holds            |
|                     | `forecast_memory`           | optional | returns the bytes that inferences will take         |
|                     | `release_caches`            | optional | frees what later inferences can make again          |
|                     | `parts`                     | optional | returns the networks on which it runs               |
|                     | `node_counts`               | optional | returns how many nodes run on the evaluator         |
|                     | `can_share`                 | optional | says whether copies may share plans and weights     |
|                     | `begin_sharing`             | optional | gives a copy of a network memory of its own         |
|                     | `prepare`                   | optional | makes plans for shapes before their inferences      |
| `SyncInferRequest`  | `start_pipeline`            | required | computes, or hands the work to the device           |
|                     | `infer_preprocess`          | optional | prepares the inputs on the host before that         |
|                     | `wait_pipeline`             | optional | waits for the device                                |
|                     | `infer_postprocess`         | optional | brings the results to the host                      |
|                     | `abort_pipeline`            | optional | releases the device after an error                  |
|                     | `request_cancel`            | optional | stops the work on the device                        |
|                     | `clear_tensors`             | optional | releases memory                                     |
|                     | `bind_again`                | optional | binds inputs of known types and shapes quickly      |

A device with contexts has two more classes, and its requests take their tensors: `SyncInferRequest.inputs` has those
that are inputs, `remote_output` those that are outputs.

| class               | hook                        |          | what it does                                        |
|---------------------|-----------------------------|----------|-----------------------------------------------------|
| `RemoteContext`     | `create_tensor_impl`        | required | makes a tensor in the device's memory               |
|                     | `wrap_impl`                 | optional | makes a tensor in memory that exists already        |
|                     | `close_impl`                | optional | releases the context's resources                    |
| `RemoteTensor`      | `handle`                    | required | returns the device's own object for the memory      |
|                     | `read`                      | required | copies the elements to the host                     |
|                     | `write`                     | required | copies elements from the host                       |
|                     | `copy_on_device`            | optional | copies from another tensor of the context           |
|                     | `host_view`                 | optional | returns the memory as an array, if the host sees it |
|                     | `shares_memory`             | optional | compares the memory of two tensors                  |
|                     | `release`                   | optional | drops the memory                                    |

Class attributes: `Plugin.name`, `version` and `api_version` are required; `Plugin.properties` and
`ExecutableNetwork.metrics` declare properties in addition to the common ones, `Plugin.context_handles` what
`create_context` takes of an application, `Plugin.oldest_blob_version` from which version on the plugin reads blobs,
`Plugin.caches_parts` that only the devices below cache networks,
`Plugin.chooses_devices` that it needs not all devices that are listed, `Plugin.compile_effects` what compiling does
beside making a network.

A plugin that compiles for other machines than this one declares `engine.properties.TARGET`, in words of its own, and
`TARGETS`, and raises `TargetError` for a target that does not exist. `ExecutableNetwork.requirements` then returns what
the target has; where `host_features` lacks some of it, the engine refuses requests, and the network can be exported.

A device that runs whole models on other devices compiles them with `self.core`; its requests pass inferences on to
requests of `network.create_sync_request()` with `SyncInferRequest.run_through`.

A device that wraps a runtime asks it about nodes and hands models over with `engine.lowering` (`NodeAnswers`,
`hand_over`); its requests call it in a block of `SyncInferRequest.stopping`, and record the call by `record_subgraph`.

The engine provides everything else: the asynchronous request, the queue, configuration, metrics, checks of tensors,
files and exception wrapping. A hook may raise any `EngineError`, which reaches the user unchanged; any other exception
becomes the cause of one.

Everything that these signatures use can be imported from here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from engine.errors import UnsupportedError
from engine.hosting.api_changes import API_CHANGES, OLDEST_API_VERSION, ApiChange
from engine.hosting.network import HostedNetwork
from engine.hosting.plugin import HostedPlugin
from engine.hosting.version import API_VERSION, engine_version
from engine.properties import CONFIG, METRIC, Config, Mutability, Property, PropertySet
from engine.startup import names_on_demand

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from engine.blob import BlobCheck, BlobManifest, BlobReader, BlobWriter
    from engine.errors import (
        Busy,
        Cancelled,
        ContextClosed,
        DeadlineExceeded,
        DeviceError,
        DeviceNotFoundError,
        EngineError,
        InferError,
        InputError,
        NotOnHostError,
        OutOfMemoryError,
        PluginContractError,
        PluginError,
        PropertyError,
        TargetError,
    )
    from engine.hosting import Features, MemoryForecast, NodeCounts
    from engine.ir import ElementType, Model, PartialShape, TensorType, ValueType
    from engine.placement import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport
    from engine.placement.support import QueryResult, RefusalCause, Support, SupportLevel
    from engine.runtime import (
        AsyncInferRequest,
        Executor,
        InferResult,
        InlineExecutor,
        NodeProfile,
        Pipeline,
        Port,
        ProfilingInfo,
        RemoteContext,
        RemoteTensor,
        RequestOwner,
        Signature,
        Stage,
        StageProfile,
        SyncInferRequest,
        ThreadExecutor,
        TransferProfile,
        Transfers,
        shared_executor,
    )

    PluginT = TypeVar("PluginT", bound="Plugin", default="Plugin", covariant=True)
else:
    from typing import TypeVar

    PluginT = TypeVar("PluginT", covariant=True)

    # A plugin imports the modules of the names that it uses.
    __getattr__ = names_on_demand(__name__, {
        "engine.blob": ["BlobCheck", "BlobManifest", "BlobReader", "BlobWriter"],
        "engine.errors": [
            "Busy", "Cancelled", "ContextClosed", "DeadlineExceeded", "DeviceError", "DeviceNotFoundError",
            "EngineError", "InferError", "InputError", "NotOnHostError", "OutOfMemoryError", "PluginContractError",
            "PluginError", "PropertyError", "TargetError",
        ],
        "engine.hosting": ["Features", "MemoryForecast", "NodeCounts"],
        "engine.ir": ["ElementType", "Model", "PartialShape", "TensorType", "ValueType"],
        "engine.placement": ["Crossing", "NodeRefusal", "PlacedSubgraph", "PlacementReport"],
        "engine.placement.support": ["QueryResult", "RefusalCause", "Support", "SupportLevel"],
        "engine.runtime": [
            "AsyncInferRequest", "Executor", "InferResult", "InlineExecutor", "NodeProfile", "Pipeline", "Port",
            "ProfilingInfo", "RemoteContext", "RemoteTensor", "RequestOwner", "Signature", "Stage", "StageProfile",
            "SyncInferRequest", "ThreadExecutor", "TransferProfile", "Transfers", "shared_executor",
        ],
    })  # fmt: skip

__all__ = [
    "API_CHANGES", "API_VERSION", "CONFIG", "METRIC", "OLDEST_API_VERSION", "ApiChange", "AsyncInferRequest",
    "BlobCheck", "BlobManifest", "BlobReader", "BlobWriter", "Busy", "Cancelled", "Config", "ContextClosed",
    "CoreHandle", "Crossing", "DeadlineExceeded", "DeviceError", "DeviceNotFoundError", "ElementType", "EngineError",
    "ExecutableNetwork", "Executor", "Features", "InferError", "InferResult", "InlineExecutor", "InputError",
    "MemoryForecast", "Model", "Mutability", "NodeCounts", "NodeProfile", "NodeRefusal", "NotOnHostError",
    "OutOfMemoryError", "PartialShape", "Pipeline", "PlacedSubgraph", "PlacementReport", "Plugin",
    "PluginContractError", "PluginError", "PluginT", "Port", "ProfilingInfo", "Property", "PropertyError",
    "PropertySet", "QueryResult", "RefusalCause", "RemoteContext", "RemoteTensor", "RequestOwner", "Signature", "Stage",
    "StageProfile", "Support", "SupportLevel", "SyncInferRequest", "TargetError", "TensorType", "ThreadExecutor",
    "TransferProfile", "Transfers", "UnsupportedError", "ValueType", "engine_version", "shared_executor",
]  # fmt: skip


class Plugin(HostedPlugin):
    """A kind of device. One instance per `Core`; all methods may be called from any thread.

    Created with the core's handle, `self.core`; a subclass with state defines `__init__(self, core)` and calls
    this one. The constructor should be fast and must not fail for lack of a device: `device_ids` reports that.

    Provided by the engine: `config`, the defaults of this device; `declared`, its properties; `resolve_device_id`.
    """

    name: ClassVar[str]
    """Required. The device's name in device strings: an upper-case letter, then upper-case letters, digits, `_`."""
    version: ClassVar[str]
    """Required. The plugin's version; blobs of another major or minor version are not imported, unless
    `oldest_blob_version` says so."""
    api_version: ClassVar[int]
    """Required. The `API_VERSION` that the plugin was written for, as an int literal: engines of the next version also
    run it. A plugin that states the engine's own version claims to know versions that it has not seen."""
    properties: ClassVar[Iterable[Property[Any]]] = ()
    """Optional. The device's own metrics and config keys; the common ones may be redeclared with other limits."""
    oldest_blob_version: ClassVar[str] = ""
    """Optional. The oldest version of the plugin whose blobs it reads, such as "1.4", of the same major number."""
    context_handles: ClassVar[Mapping[str, str]] = {}
    """Optional. The native objects of an application that `create_context` takes: their names, with a description of
    each.
    """

    caches_parts: ClassVar[bool] = False
    """Optional. Whether the device passes CACHE_DIR on to the devices on which it runs whole models, which cache their
    networks; the core then keeps no networks of its own in that folder."""

    compile_effects: ClassVar[Collection[str]] = ()
    """Optional. The config keys with which a compilation does more than make a network, such as drawing the model: with
    another value than the default, a network comes from a cache only if the user has set CACHE_DIR."""

    chooses_devices: ClassVar[bool] = False
    """Optional. Whether the device leaves out devices of DEVICE_PRIORITIES that cannot be used; otherwise, a blob loads
    only where each of them exists."""

    def __init__(self, core: CoreHandle) -> None:
        super().__init__()
        self.core = core

    @abstractmethod
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """Required. Compile `model`, which must not be changed (clone it); `config` is complete and validated.

        Raise `UnsupportedError` with node and reason if the device cannot run a node.
        """

    @abstractmethod
    def query_model(self, model: Model, config: Config) -> QueryResult:
        """Required. Return for every operation of `model`, by friendly name, how the device supports it.

        The model must not be changed.
        """

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """Optional. Rebuild a network from what its `export_sections` wrote; the manifest has already been checked.

        `config` is the exported configuration, overridden by the one given on import. If this method is not
        overridden, IMPORT_EXPORT_SUPPORT is False.
        """
        raise UnsupportedError(f"{self.name} cannot import compiled networks; compile the model instead")

    def create_context(self, device: str, config: Config, handles: Mapping[str, object]) -> RemoteContext:
        """Optional. Make a context, whose tensors stay in the device's memory.

        `device` is the device string to report; `config` is complete and validated, and selects the device; `handles`
        has some of `context_handles`, or none. Raise `InputError` for a handle that is not what its description says.
        If this method is not overridden, REMOTE_CONTEXT_SUPPORT is False.
        """
        raise UnsupportedError(f"{self.name} has no remote contexts")

    def compile_in_context(self, model: Model, config: Config, context: RemoteContext) -> ExecutableNetwork:
        """Optional. Like `compile_model`, for a network that takes the tensors of an open context of this plugin.

        By default it is `compile_model`, for devices whose contexts matter to requests only.
        """
        return self.compile_model(model, config)

    def import_in_context(self, blob: BlobReader, config: Config, context: RemoteContext) -> ExecutableNetwork:
        """Optional. Like `import_network`, for a network that takes the tensors of a context; by default the same."""
        return self.import_network(blob, config)

    def device_ids(self) -> Sequence[str]:
        """Optional. The ids of the present devices, the default first; if empty, the plugin is unavailable."""
        return ("0",)

    def metric(self, name: str, device_id: str) -> object:
        """Optional. The value of a metric of `properties` for one of `device_ids`; None for the declared default.

        Override it for FULL_DEVICE_NAME, by default `name`, OPTIMIZATION_CAPABILITIES and your own metrics.
        """
        return None

    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """Optional. The features of this machine that `ExecutableNetwork.requirements` of a blob are compared with.

        They are part of the key of networks in CACHE_DIR: include what affects compilation, such as a driver's version.
        A list or tuple is in ascending order: of the variants in a package, the one is imported that requires the
        highest.
        """
        return {}

    def check_blob(self, manifest: BlobManifest, features: Mapping[str, str | Collection[str]]) -> BlobCheck:
        """Optional. Whether `import_network` can rebuild the network of a blob of this device, and what would be faster
        if it was compiled again.

        By default, the plugin's version is compared, and the requirements of the blob with `features`, which
        `host_features` has returned; so are its preferences, which give advice. A plugin that has another way to
        rebuild a network, such as from a graph, overrides it: it passes a manifest with other requirements on to this
        method, or changes the answer. The engine calls it before each import; it has compared its own version and the
        plugin API.
        """
        from engine.blob import check_manifest

        return check_manifest(
            manifest,
            plugin_version=self.version,
            oldest_version=self.oldest_blob_version,
            available=features,
        )

    def _imports_networks(self) -> bool:
        return type(self).import_network is not Plugin.import_network

    def _makes_contexts(self) -> bool:
        return type(self).create_context is not Plugin.create_context


class ExecutableNetwork(HostedNetwork[PluginT]):
    """A model compiled for a device. Holds the state that its requests share; all methods are thread-safe.

    For authors of plugins: the constructor takes the arguments below and compiles nothing. A subclass has one class
    method for each way of creating a network, which calls the constructor and then sets the subclass's attributes:
    `compiled(plugin, config, model)` for `Plugin.compile_model`, and `imported(plugin, config, blob)` for
    `Plugin.import_network`. A network that reads attributes of its plugin names the plugin's class for type checkers:
    `ExecutableNetwork["MyPlugin"]`.

    Provided by the engine: `plugin`, `config`, `name`, `context`, `signature` with `inputs` and `outputs`,
    `is_profiling`, and the executors `task_executor`, with NUM_STREAMS threads, and `callback_executor`.

    Args:
        plugin: the plugin that creates the network.
        config: the complete configuration.
        source: names, inputs and outputs are read from it: the model as the user passed it, or a blob's manifest.
    """

    metrics: ClassVar[Iterable[Property[Any]]] = ()
    """Optional. The network's own metrics, in addition to the common ones."""

    graph: Any = None
    """Optional. The transformed graph that requests run, in any form; for inspecting a network."""

    def __init__(self, plugin: PluginT, config: Config, source: Model | BlobManifest) -> None:
        super().__init__(plugin, config, source)

    @abstractmethod
    def create_infer_request_impl(self) -> SyncInferRequest:
        """Required. Return a new synchronous request. Never called by two threads at the same time."""

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """Optional. The executors on which the stages of an asynchronous request run, in order.

        By default all stages run on the task executor. A device with its own queue puts host and device
        stages on different executors, so that stages of several requests overlap. Adjacent stages of one executor
        run without a hop between them.
        """
        executor = self.task_executor
        stages = request.infer_preprocess, request.start_pipeline, request.wait_pipeline, request.infer_postprocess
        return [(executor, stage) for stage in stages]

    def export_sections(self, writer: BlobWriter) -> None:
        """Optional. Write the sections from which `Plugin.import_network` rebuilds this network."""
        raise UnsupportedError(f"{self.plugin.name} cannot export compiled networks")

    def requirements(self) -> Features:
        """Optional. The features that a machine needs to run this network's blob; compared with `host_features`.

        A value that begins with ">=" or "<" is a window of versions: `{"driver": ">=3.1,<4"}`.
        """
        return {}

    def preferences(self) -> Features:
        """Optional. The features with which this network's blob is as fast as one that is compiled on the machine.

        Where they are missing, `check_blob` advises to compile again; the blob must run and compute the same.
        """
        return {}

    def metric(self, name: str) -> object:
        """Optional. The value of a metric of `metrics` or of all networks; None for the declared default."""
        return None

    def parts(self) -> Mapping[str, ExecutableNetwork]:
        """Optional. The networks on other devices on which this one runs now, by what they are for, such as "part0"."""
        return {}

    def node_counts(self) -> NodeCounts | None:
        """Optional. The nodes of the graph, and those that the reference evaluator runs, for EXECUTION_SUMMARY.

        None stands for the sums of the parts.

        A network that runs slowly, or not as it was asked to, also appends a sentence to `remarks` for each reason.
        """
        return None

    def memory(self) -> Mapping[str, int]:
        """Optional. The bytes that the network holds, by purpose, for `memory_statistics`: weights, arena and so on."""
        return {}

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """Optional. The memory of inferences with these shapes: of the inputs, and then of the variables' values.

        For `memory_forecast`. It makes what it needs to know the sizes, and infers nothing. Raises `InputError` if the
        model cannot take these shapes, and `UnsupportedError` if the device does not know its memory.
        """
        raise UnsupportedError(
            f"{self.plugin.name} does not forecast its memory; `memory_statistics` has what a network holds now"
        )

    def can_share(self) -> bool:
        """Optional. Whether another compilation of the same file and configuration may get a copy of this network.

        A copy has the same attributes, and executors and requests of its own: `begin_sharing` is called on it.
        """
        return False

    def begin_sharing(self) -> None:
        """Optional. Replace what this copy of a network must not share with the others, such as memory for runs."""

    def release_caches(self) -> None:
        """Optional. Free caches that later inferences fill again, for `release_memory`. Inferences may be running.

        Plugins for API 1 call it `release`.
        """

    def prepare(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Optional. Make what inferences with these shapes need: of the inputs, and then of the variables' values.

        For `prepare_shapes`; the first inference makes it otherwise. Raises `InputError` if the model cannot take them.
        """


class CoreHandle(Protocol):
    """The part of the `Core` that plugins created by it may use. Thread-safe."""

    def read_model(self, model: Any) -> Model:
        """Import an ONNX model from a path, bytes, a stream or a ModelProto."""

    def compile_model(
        self, model: Any, device: str | RemoteContext, config: Mapping[str, object] | None = None
    ) -> ExecutableNetwork:
        """Compile a model, or a path to one, for any device or context."""

    def note_copy(self, copy: Model, model: Model) -> None:
        """Say that a copy is, and stays, equal to the model of `compile_model`, so that its networks can be cached.

        Only the core knows whether the model was read from a file.
        """

    def import_model(
        self, blob: Any, device: str | RemoteContext | None = None, config: Mapping[str, object] | None = None
    ) -> ExecutableNetwork:
        """Import a compiled network from a path, bytes or a stream, or a part of a blob: `reader.nested(section)`."""

    def create_context(self, device: str, properties: Mapping[str, object] | None = None) -> RemoteContext:
        """Make a context of a device, for tensors in its memory."""

    def query_model(self, model: Any, device: str, config: Mapping[str, object] | None = None) -> QueryResult:
        """Return how a device supports each node of a model."""

    def get_property(self, device: str, name: str) -> Any:
        """Read a metric or config value of a device."""

    @property
    def available_devices(self) -> Sequence[str]:
        """The devices for which models can be compiled. Loads all plugins and asks them, which may take seconds."""

    @property
    def installed_devices(self) -> Sequence[str]:
        """The device names of all plugins, usable or not; none is loaded for it."""

    @property
    def registered_plugins(self) -> Mapping[str, str]:
        """The plugins that the application has registered, as "module:name" by device; installed ones are not listed.

        For a device that starts other processes: their cores need them, too.
        """

    @property
    def registered_extensions(self) -> Mapping[str, str]:
        """The extensions that the application has added, as "name version", each with its module's name or its path.

        It is empty for an object that another process cannot find by a name.
        """
