"""`HostedNetwork`: the engine's part of every network. Its hooks are documented in `engine.plugin_api`."""

from __future__ import annotations

import io
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, Generic, Self, SupportsIndex, TypeAlias, cast, final

from engine.blob import (
    BlobManifest,
    BlobWeights,
    SectionTransform,
    SigningKey,
    WeightsFile,
)
from engine.errors import (
    BlobError,
    BlobFormatError,
    BlobSignatureError,
    Cancelled,
    InputError,
    PluginContractError,
    PluginError,
    TargetError,
)
from engine.hosting.plugin import HostedPlugin
from engine.hosting.version import API_VERSION, engine_version
from engine.hosting.wrapping import metric_value, not_initialised, plugin_errors, wrong_return
from engine.properties import (
    DEVICE_ID,
    EXCLUSIVE_ASYNC_REQUESTS,
    METRIC,
    NETWORK_METRICS,
    NUM_STREAMS,
    PERF_COUNT,
    TARGET,
    Config,
    Property,
)
from engine.runtime import (
    AsyncInferRequest,
    Executor,
    InferResult,
    Pipeline,
    Port,
    RemoteContext,
    Signature,
    StatePort,
    SyncInferRequest,
    ThreadExecutor,
    shared_executor,
)
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.runtime.overview import show_overview

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from engine.blob import BlobRelease, BlobWriter
    from engine.hosting.memory import MemoryForecast
    from engine.hosting.overrides import Overrides
    from engine.hosting.summary import NodeCounts
    from engine.ir import Model, Variable
    from engine.runtime.shadow import Shadow, ShadowDifference
    from engine.runtime.submission import InferFuture, Submissions

    HostedPluginT = TypeVar("HostedPluginT", bound=HostedPlugin, default=HostedPlugin, covariant=True)
else:
    from typing import TypeVar

    HostedPluginT = TypeVar("HostedPluginT", covariant=True)

Features: TypeAlias = Mapping[str, str | Sequence[str]]
"""The requirements of a blob, by kind: `{"isa": ["avx2", "fma"], "driver": "3.1"}`."""


class HostedNetwork(Participant, ABC, Generic[HostedPluginT]):
    """A model compiled for a device: inputs, outputs, requests, properties and export. All methods are thread-safe.

    What applications use first:

        network.inputs, network.outputs            # names, types and shapes
        result = network({"x": array})             # one inference in this thread; result["y"] is an array
        request = network.create_infer_request()   # keeps tensors and states; also runs in the background
        network.get_property("EXECUTION_DEVICES")  # a metric, or a config key
        network.export_model("network.blob")       # for `Core.import_model`
    """

    metrics: ClassVar[Iterable[Property[Any]]] = ()
    takes_overrides: ClassVar[bool] = True
    """Whether inferences may give initializers other values; if not, their values come from the model's file."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        show_overview(cls, HostedNetwork)

    def __init__(self, plugin: HostedPluginT, config: Config, source: Model | BlobManifest) -> None:
        if not isinstance(plugin, HostedPlugin) or not isinstance(config, Config):
            raise PluginContractError(
                f"{type(self).__name__}.__init__ must pass on the plugin and the Config that it was given; "
                f"got {type(plugin).__name__} and {type(config).__name__}"
            )
        self._plugin = plugin
        self.config = config
        self.name, inputs, outputs, states, self.model_identity = _interface(source)
        self.signature = Signature(
            inputs, outputs, f"{plugin.name} network `{self.name}`", states, fixed=self._fixed_inputs(source)
        )
        self.is_profiling = config[PERF_COUNT]
        self.loaded_from_cache = False
        self.compile_seconds = 0.0
        """How long compiling or importing took; set by the core."""
        self.unpickle: Callable[[bytes], object] | None = None
        """Imports a blob in another process; set by the core, which this package cannot import."""
        self.open_weights: Callable[[str | os.PathLike[str]], WeightsFile] = BlobWeights
        """Opens a file that has sections of a blob; set by the core, which also reads models."""
        self.remarks: list[str] = []
        """Remarks for the user on how the network runs, one sentence each: the core warns of them, once."""
        self.overrides: Overrides | None = None
        """The initializers that inferences may give other values; set by the core."""
        self.extensions = _extensions_of(source)
        """The extensions whose operators the model uses, each as "name version"; its blob requires them."""
        self._declared = NETWORK_METRICS.combined(self.metrics)
        self._set_own_parts()

    def _set_own_parts(self) -> None:
        """Set what no two networks share: executors, locks and requests."""
        self.task_executor = self._make_task_executor()
        self.callback_executor: Executor = ThreadExecutor(f"{self.plugin.name}:{self.name}:callbacks")
        self._context: RemoteContext | None = None
        self._request_ids = itertools.count()
        self._creating = ForkSafeLock()
        self._idle_requests: list[SyncInferRequest] = []
        self._submissions: Submissions | None = None
        self._called: set[SyncInferRequest] = set()
        """The requests of calls that have not returned."""
        lifecycle.track(self)

    @final
    def sharing(self) -> Self:
        """Another network with the plans and weights of this one, if `can_share`. Called by the core."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.remarks, other.overrides = list(self.remarks), None
        other._set_own_parts()
        other.begin_sharing()
        return other

    def _fixed_inputs(self, source: Model | BlobManifest) -> frozenset[str]:
        """The initializers that are also inputs of the model, and that the network has as constants for good."""
        if isinstance(source, BlobManifest):
            return _fixed_by(source)
        return frozenset() if self.takes_overrides else frozenset(source.overridable)

    def _make_task_executor(self) -> Executor:
        if self.config[EXCLUSIVE_ASYNC_REQUESTS]:
            device_id = self.plugin.resolve_device_id(self.config[DEVICE_ID])
            return shared_executor(f"{self.plugin.name}.{device_id}")
        return ThreadExecutor(f"{self.plugin.name}:{self.name}", self.config[NUM_STREAMS] or 1)

    @abstractmethod
    def create_infer_request_impl(self) -> SyncInferRequest:
        """Return a new synchronous request. Never called by two threads at the same time."""

    @abstractmethod
    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """The stages of an asynchronous inference in order, each with the executor on which it runs."""

    @abstractmethod
    def export_sections(self, writer: BlobWriter) -> None:
        """Write the sections from which `Plugin.import_network` rebuilds this network."""

    @abstractmethod
    def requirements(self) -> Features:
        """The features that a machine needs to run this network's blob; compared with `host_features`."""

    @abstractmethod
    def preferences(self) -> Features:
        """The features with which this network's blob is as fast as a new compilation."""

    @abstractmethod
    def metric(self, name: str) -> object:
        """The value of a metric of this network or of all networks; None for the declared default."""

    @abstractmethod
    def parts(self) -> Mapping[str, HostedNetwork[Any]]:
        """The networks on other devices on which this one runs now, by their purpose, such as "part0"."""

    @abstractmethod
    def node_counts(self) -> NodeCounts | None:
        """The nodes of the graph, and those on the reference evaluator; None for the sums of the parts."""

    @abstractmethod
    def memory(self) -> Mapping[str, int]:
        """The bytes that the network holds, by purpose, for `memory_statistics`."""

    @abstractmethod
    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """See `ExecutableNetwork`."""

    @abstractmethod
    def can_share(self) -> bool:
        """See `ExecutableNetwork`."""

    @abstractmethod
    def begin_sharing(self) -> None:
        """See `ExecutableNetwork`."""

    @abstractmethod
    def release_caches(self) -> None:
        """Free caches that later inferences fill again; inferences may be running."""

    def release(self) -> None:
        """Called in place of `release_caches` on the networks of plugins for API 1; does nothing for others."""

    @abstractmethod
    def prepare(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """See `ExecutableNetwork`."""

    @final
    @property
    def plugin(self) -> HostedPluginT:
        """The plugin that created the network."""
        return self._plugin

    @final
    @property
    def context(self) -> RemoteContext | None:
        """The context that the network was compiled or imported for, whose remote tensors its requests take."""
        return self._context

    @final
    def use_context(self, context: RemoteContext) -> None:
        """Take the remote tensors of a context. Called by the engine, before any request is made."""
        self._context = context
        self.signature.use_context(context)

    # -- inference ----------------------------------------------------------------------------------------

    @final
    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of the network, in the model's order."""
        return self.signature.inputs

    @final
    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs of the network, in the model's order."""
        return self.signature.outputs

    @final
    @property
    def overridable(self) -> tuple[Port, ...]:
        """The initializers that the model's file also lists as inputs; an inference may give other values, by name.

        They are constants until one is given; then the model is compiled again, once, with it as an input. A blob has
        none: there, a value that changes must be an input before the network is compiled (`Model.make_input`).
        """
        return () if self.overrides is None else tuple(self.overrides.ports.values())

    @final
    def input(self, key: str | int | None = None) -> Port:
        """The input of this name or index; without one, the only input. Raises `InputError` listing the inputs."""
        return self.signature.port(key, self.inputs, "input")

    @final
    def output(self, key: str | int | None = None) -> Port:
        """The output of this name or index; without one, the only output. Raises `InputError` listing the outputs."""
        return self.signature.port(key, self.outputs, "output")

    @final
    @property
    def variables(self) -> tuple[Variable, ...]:
        """The values that requests keep between inferences."""
        return tuple(state.variable for state in self.signature.states)

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

        `inputs`: a mapping of names to values, a list of values in input order, or a single array; None for a network
        without inputs. Threads that call concurrently use separate requests, which are kept for later calls. Variables
        have their initial values in each call: use a request to keep them. Raises the errors of
        `SyncInferRequest.infer`, and `Cancelled` when the interpreter exits.
        """
        if self.overrides is not None and (names := self.overrides.given(inputs)):
            other: HostedNetwork = self.overrides.network(names)
            return other(self.overrides.completed(cast("Mapping[Any, Any]", inputs), other))
        request = self._idle_request() or self.create_sync_request()
        self._called.add(request)
        try:
            lifecycle.refuse_at_exit(self.signature.network)
            return request.infer(inputs)
        finally:
            self._called.discard(request)
            request.clear_tensors()
            if request.states is not None:
                request.states.reset()
            self._idle_requests.append(request)

    @final
    def submit(self, inputs: object = None, *, deadline: float | None = None) -> InferFuture:
        """Run one inference in the background: `network.submit({"x": array}).result()["y"]`.

        Inferences beyond OPTIMAL_NUMBER_OF_INFER_REQUESTS wait for earlier ones, in order. `inputs` as for a call; the
        arrays must not be changed until the future is done. Variables have their initial values in each inference.
        `deadline` (seconds) counts from when the inference begins. `cancel()` of the future also ends an inference that
        runs. The future has the error of the inference: `InputError`, `DeadlineExceeded`, `Cancelled` and others.

        Raises `Cancelled` when the interpreter exits.
        """
        if self.overrides is not None and (names := self.overrides.given(inputs)):
            other: HostedNetwork = self.overrides.network(names)
            return other.submit(self.overrides.completed(cast("Mapping[Any, Any]", inputs), other), deadline=deadline)
        with self._creating:
            if self._submissions is None:
                from engine.runtime.submission import Submissions

                limit = self.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
                name = f"an inference of {self.signature.network}"
                self._submissions = Submissions(self.create_infer_request, self._reset, limit, name)
        return self._submissions.submit(inputs, deadline)

    @final
    async def infer_async(self, inputs: object = None, *, deadline: float | None = None) -> InferResult:
        """Like `submit`, as a coroutine: `await network.infer_async({"x": array})`, or a task of a `TaskGroup`.

        Cancelling the task cancels the inference.
        """
        import asyncio  # 6 MB; a caller that awaits has loaded it already

        return await asyncio.wrap_future(self.submit(inputs, deadline=deadline))

    @final
    def shadow(
        self,
        other: HostedNetwork[Any],
        *,
        sample: float = 0.01,
        rtol: float = 1e-3,
        atol: float = 1e-5,
        on_difference: Callable[[ShadowDifference], object] | None = None,
        queue: int = 4,
        seed: int | None = None,
    ) -> Shadow:
        """Compare a sample of this network's inferences with another network in the background.

        The networks must have the same inputs and outputs, such as one model on two devices. See `Shadow`, which this
        returns, for the arguments; it ends with `close()`, or as a context manager. Raises `InputError` and
        `InferError`.
        """
        from engine.runtime.shadow import Shadow

        return Shadow(
            self, other, sample=sample, rtol=rtol, atol=atol, on_difference=on_difference, queue=queue, seed=seed
        )

    def _reset(self, request: AsyncInferRequest) -> None:
        request.clear_tensors()
        if self.signature.states:
            request.reset_state()

    def _idle_request(self) -> SyncInferRequest | None:
        try:
            return self._idle_requests.pop()
        except IndexError:  # checking first would race with other threads
            return None

    @final
    def create_infer_request(self) -> AsyncInferRequest:
        """Return a new request, which keeps the network alive."""
        request = self.create_sync_request()
        with plugin_errors(self.plugin.name, "pipeline"):
            pipeline = self.pipeline(request)
        return AsyncInferRequest(request, pipeline, self.callback_executor, self)

    @final
    def create_sync_request(self) -> SyncInferRequest:
        """Return a new synchronous request, for a device that runs whole models on others.

        See `SyncInferRequest.run_through`; applications use `create_infer_request`.
        """
        self._require_this_machine()
        with self._creating, plugin_errors(self.plugin.name, "create_infer_request_impl"):
            request = self.create_infer_request_impl()
        if not isinstance(request, SyncInferRequest):
            raise wrong_return(self.plugin.name, "create_infer_request_impl", request, "SyncInferRequest")
        if not hasattr(request, "signature"):
            raise not_initialised(self.plugin.name, request, "network")
        return request

    def _require_this_machine(self) -> None:
        """Raise `TargetError` if the network was compiled for a machine that this one is not."""
        target = self.config.get(TARGET.name)
        if not target or not (requirements := self.requirements()):
            return
        with plugin_errors(self.plugin.name, "host_features"):
            features = self.plugin.host_features(self.plugin.resolve_device_id(self.config[DEVICE_ID]))
        for kind, required in requirements.items():
            here = _as_set(features.get(kind, ()))
            if missing := _as_set(required) - here:
                raise TargetError(
                    f"{self.signature.network} was compiled for {target}: it needs {kind} "
                    f"{', '.join(sorted(missing))}, and this machine has {', '.join(sorted(here)) or 'none'}; export "
                    "the network, and import it on a machine that has it"
                )

    @final
    def next_request_id(self) -> int:
        """Return a number that no other request of this network has."""
        return next(self._request_ids)

    # -- fork and exit ------------------------------------------------------------------------------------

    @final
    def _after_fork(self) -> None:
        self._called.clear()

    @final
    def _begin_exit(self) -> None:
        error = Cancelled(f"{self.signature.network}: a call was cancelled: the interpreter exits")
        for request in self._called.copy():
            request.request_cancel(error)

    @final
    def _is_busy(self) -> bool:
        return bool(self._called)

    # -- properties and export ----------------------------------------------------------------------------

    @final
    def get_config(self, name: str) -> Any:
        """Return a config value that the network was compiled or imported with. Raises `PropertyError`."""
        return self.config[name]

    @final
    def get_metric(self, name: str) -> Any:
        """Return a metric. Raises `PropertyError` listing the metrics; `PluginContractError`."""
        where = f"{self.plugin.name}: network `{self.name}`"
        return metric_value(self._declared, name, lambda: self._metric(name), where)

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
            case "COMPILE_SECONDS":
                return self.compile_seconds
            case "EXECUTION_SUMMARY":
                from engine.hosting.summary import summary_of

                return summary_of(self)
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
    def memory_statistics(self) -> dict[str, int]:
        """Return the memory that the network holds now, in bytes by purpose: such as "weights", and "arena".

        Only the memory that the device reports; tensors of requests are not included. Raises `PluginContractError`.
        """
        with plugin_errors(self.plugin.name, "memory"):
            found = self.memory()
        if not isinstance(found, Mapping) or not all(
            isinstance(name, str) and type(size) is int and size >= 0 for name, size in found.items()
        ):
            raise PluginContractError(
                f"plugin {self.plugin.name}: memory must return a mapping of names to bytes; got {found!r:.80}"
            )
        return dict(found)

    @final
    def release_memory(self) -> None:
        """Free memory that later inferences can allocate again: idle requests of calls and futures, and caches of the
        device.

        Requests that the application holds keep theirs. The next inferences take longer.
        """
        self._idle_requests.clear()
        if self._submissions is not None:
            self._submissions.release_idle()
        with plugin_errors(self.plugin.name, "release_caches"):
            if self.plugin.api_version < 2:
                self.release()
            else:
                self.release_caches()

    @final
    def prepare_shapes(self, shapes: Mapping[str, Sequence[int]], past: int = 0) -> None:
        """Prepare inferences with inputs of these shapes, so that the first one takes no longer than later ones.

        A device that makes plans for shapes makes those for the given ones, and if it can, for other numbers of tokens
        and sequences. Devices that make none do nothing. Nothing is inferred, and no request is changed.

        Args:
            shapes: the shape of each input, by name.
            past: the length of the variables along the dimension that grows.

        Raises `InputError` if an input is missing, or the model cannot take these shapes.
        """
        found = self._value_shapes(shapes, past)
        with plugin_errors(self.plugin.name, "prepare"):
            self.prepare(found)

    @final
    def memory_forecast(self, shapes: Mapping[str, Sequence[int]] | None = None, past: int = 0) -> MemoryForecast:
        """Return the memory that the next inference with inputs of these shapes takes, in bytes. Nothing is inferred.

        A device that makes plans for shapes may make one. After lengths have varied, one plan may serve all of them,
        which takes more memory for some than a plan of their own.

        Args:
            shapes: the shape of each input, by name; those of known shape may be omitted.
            past: the length of the variables before the inference along the dimension that grows.

        Raises `InputError` if a shape is missing, or the model cannot take these shapes, and `UnsupportedError` if the
        device does not know its memory.
        """
        from engine.hosting.memory import MemoryForecast

        found = self._value_shapes(self._with_known({} if shapes is None else shapes), past)
        with plugin_errors(self.plugin.name, "forecast_memory"):
            forecast = self.forecast_memory(found)
        if not isinstance(forecast, MemoryForecast):
            raise wrong_return(self.plugin.name, "forecast_memory", forecast, "MemoryForecast")
        forecast.require_valid(self.plugin.name)
        return forecast

    def _with_known(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
        """`shapes`, and those of the inputs whose shapes are known. Raises `InputError` for a name of no input."""
        for name in shapes:
            self.signature.find_input(name)
        known = {port.name: shape for port in self.inputs if (shape := _known_shape(port)) is not None}
        return known | dict(shapes)

    def _value_shapes(self, shapes: Mapping[str, Sequence[int]], past: int) -> list[tuple[int, ...]]:
        """The shapes of all inputs, and then of the values of the variables, for lengths that inputs have."""
        from engine.ir import PartialShape, TensorType  # which a network from a blob may not need

        self._require_this_machine()
        if not _is_length(past):
            raise InputError(f"{self.name}: expected the length of the variables, an int of 0 or more; got {past!r}")
        found, lengths = [], dict[object, int]()
        for port in self.inputs:
            if port.name not in shapes:
                raise InputError(f"{self.name}: input `{port.name}` has no shape; got {', '.join(shapes) or 'none'}")
            given: object = shapes[port.name]
            shape = tuple(given) if isinstance(given, Iterable) else None
            if shape is None or not all(map(_is_length, shape)):
                raise InputError(
                    f"{self.name}: input `{port.name}`: expected a sequence of lengths, each an int of 0 or more; got "
                    f"{given!r:.80}"
                )
            known = port.type.shape if isinstance(port.type, TensorType) else None
            if known is None or not known.compatible(PartialShape(shape)):
                raise InputError(f"{self.name}: input `{port.name}` cannot have shape {list(shape)}; it is {port.type}")
            found.append(shape)
            if known.rank.is_static:
                lengths |= {dim.symbol: length for dim, length in zip(known, shape, strict=True) if dim.symbol}
        for state in self.signature.states:
            dims = zip(state.before.shape, state.variable.initial.shape, strict=True)
            value = [dim.min if dim.is_static else lengths.get(dim.symbol, first) for dim, first in dims]
            if state.variable.axis is not None:
                value[state.variable.axis] = past
            found.append(tuple(value))
        return found

    @final
    def export_model(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        sign: SigningKey | str | os.PathLike[str] | None = None,
        transform: SectionTransform | str | os.PathLike[str] | None = None,
        weights: WeightsFile | str | os.PathLike[str] | None = None,
        release: BlobRelease | str | None = None,
    ) -> None:
        """Write the compiled network to a path, atomically, or to a binary stream.

        With `sign`, a key or the file of one, the blob is signed: a core whose TRUSTED_KEYS have the key trusts it. The
        signature then includes the `release`, such as "resnet50:7": an import that requires release 7 takes neither an
        older blob nor one of another name. With `transform`, a key that encrypts (or the file of one) or a transform of
        your own, all sections are stored in this form, and an import also needs it; the manifest, with the names of
        inputs and outputs, is not. With `weights`, the model's file or another blob, sections that this file also has
        are left out: an import needs the file, unchanged, and maps it, so that networks that share it have one copy in
        memory.

        Raises `BlobError` if writing fails, if the file of weights does not have any of the sections or would be
        replaced; `BlobSignatureError` or `BlobTransformError` if a key cannot be used; `UnsupportedError` if the device
        cannot export.
        """
        from engine.blob import BlobRelease, read_signing_key, transform_of

        key = read_signing_key(sign) if isinstance(sign, (str, os.PathLike)) else sign
        if key is not None and not isinstance(key, SigningKey):
            raise BlobSignatureError(f"a blob is signed by a SigningKey, or the file of one; got {type(key).__name__}")
        cipher = transform_of(transform)
        stated = None if release is None else BlobRelease.parse(release)
        if stated is not None and key is None:
            raise BlobSignatureError(f"release {stated}: only a signed blob states one; pass `sign`")
        writer = self.blob_writer({} if stated is None else stated.to_metadata())
        if weights is not None:
            file = self._weights_file(weights)
            if isinstance(target, (str, os.PathLike)) and os.path.realpath(target) == os.path.realpath(file.path):
                raise BlobError(f"the blob would replace {file.path}, which has its weights; export it to another file")
            writer = writer.bound_to(file)
        if cipher is not None:
            writer = writer.transformed(cipher)
        if isinstance(target, (str, os.PathLike)):
            writer.write_file(target, sign=key)
        elif hasattr(target, "write"):
            writer.write(target, sign=key)
        else:
            raise PluginError(f"cannot export a network to {type(target).__name__}; expected a path or a binary stream")

    def _weights_file(self, weights: WeightsFile | str | os.PathLike[str]) -> WeightsFile:
        return weights if isinstance(weights, WeightsFile) else self.open_weights(weights)

    @final
    def blob_writer(self, metadata: Mapping[str, Any] | None = None) -> BlobWriter:
        """Return the network's blob, ready to be written, with additional metadata in its manifest.

        Raises `UnsupportedError` if the device cannot export.
        """
        from engine.blob import BlobWriter

        with plugin_errors(self.plugin.name, "exporting a network"):
            writer = BlobWriter(self._manifest(metadata or {}))
            self.export_sections(writer)
        return writer

    def _manifest(self, metadata: Mapping[str, Any]) -> BlobManifest:
        return BlobManifest(
            device=self.plugin.name,
            plugin_name=self.plugin.name,
            plugin_version=self.plugin.version,
            engine_version=engine_version(),
            api_version=str(API_VERSION),
            requirements={**self.requirements(), **({_EXTENSIONS: self.extensions} if self.extensions else {})},
            config=self.config.portable().to_json(),
            inputs=[port.to_json() for port in self.inputs],
            outputs=[port.to_json() for port in self.outputs],
            metadata={**metadata, **self._metadata()},
            preferences=self.preferences() if self.plugin.api_version > 1 else {},
        )

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"network_name": self.name}
        if self.overrides is not None:
            metadata["overridable"] = list(self.overrides.ports)
        if self.signature.states:
            metadata["model_identity"] = self.model_identity
            metadata["variables"] = [state.to_json() for state in self.signature.states]
        return metadata

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the network as its blob, which a core of the other process imports: for process pools.

        Plugins that were registered in this core only, and properties that only the application states, do not travel.
        Load pickles only from a source that you trust: unpickling runs code, and checks no signature.
        """
        if self._context is not None:
            raise TypeError(f"{self!r} cannot be pickled: its remote context belongs to this process")
        if self.unpickle is None:
            raise TypeError(f"{self!r} cannot be pickled: it was not made by a Core")
        blob = io.BytesIO()
        self.export_model(blob)
        return self.unpickle, (blob.getvalue(),)

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        rows = [("input", port.name, port.type, port.layout) for port in self.inputs]
        rows += [("output", port.name, port.type, port.layout) for port in self.outputs]
        return html_table(f"{self.plugin.name} network {self.name}", ("", "Name", "Type", "Layout"), rows)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        return f"<{self.plugin.name} network `{self.name}` ({inputs}) -> ({outputs})>"


def _as_set(value: str | Collection[str]) -> frozenset[str]:
    return frozenset([value]) if isinstance(value, str) else frozenset(value)


_EXTENSIONS: Final = "extensions"
"""The requirement of a blob; see `engine.extensions`."""


def _extensions_of(source: Model | BlobManifest) -> tuple[str, ...]:
    """The extensions that a blob requires; the core sets them for a model."""
    required = source.requirements.get(_EXTENSIONS, ()) if isinstance(source, BlobManifest) else ()
    return (required,) if isinstance(required, str) else tuple(required)


def _fixed_by(manifest: BlobManifest) -> frozenset[str]:
    """The initializers that were also inputs of the model from which a blob was made."""
    names = manifest.metadata.get("overridable", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BlobFormatError("the manifest's metadata has an overridable of the wrong type")
    return frozenset(names)


def _is_length(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool) and value.__index__() >= 0


def _known_shape(port: Port) -> tuple[int, ...] | None:
    """The shape of a tensor whose lengths are all known."""
    from engine.ir import TensorType

    if not isinstance(port.type, TensorType) or not port.type.shape.is_static:
        return None
    return port.type.shape.get_shape()


def check_interface(manifest: BlobManifest) -> None:
    """Raise `BlobFormatError` if no network can have the inputs, outputs and variables that a blob describes."""
    _fixed_by(manifest)
    _interface(manifest)


def _interface(
    source: Model | BlobManifest,
) -> tuple[str, list[Port], list[Port], tuple[StatePort, ...], str]:
    """Name, inputs, outputs and variables of a network, and with variables the identity of its model, else ""."""
    if not isinstance(source, BlobManifest):
        return _interface_of_model(source)
    name = source.metadata.get("network_name")
    if not isinstance(name, str):
        raise BlobFormatError(f"the manifest's metadata has no network_name; got {name!r}")
    inputs, outputs = ([Port.from_json(port) for port in ports] for ports in (source.inputs, source.outputs))
    described, identity = source.metadata.get("variables", []), source.metadata.get("model_identity", "")
    if not isinstance(described, list) or not isinstance(identity, str):
        raise BlobFormatError("the manifest's metadata has variables or a model_identity of the wrong type")
    return name, inputs, outputs, tuple(map(StatePort.from_json, described)), identity


def _interface_of_model(source: Model) -> tuple[str, list[Port], list[Port], tuple[StatePort, ...], str]:
    from engine.ir import DECLARED_LENGTHS, Model, model_identity

    if not isinstance(source, Model):
        raise PluginContractError(f"a network's source must be the model or the blob's manifest; got {source!r:.80}")
    states = StatePort.of(source)
    is_declared = bool(source.rt_info.get(DECLARED_LENGTHS))
    inputs = [Port.of(node) for node in source.parameters]
    outputs = [Port.of(node, is_declared=is_declared) for node in source.results]
    if not states:
        return source.name, inputs, outputs, (), ""
    count = len(states)
    return source.name, inputs[:-count], outputs[:-count], states, model_identity(source)
