"""`InferenceSession`: a compiled model with the methods of onnxruntime's class of this name."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from engine.core import Core
from engine.core.report import warn_of
from engine.errors import Cancelled, InputError
from engine.ir import Model, PartialShape, TensorType
from engine.runtime import InferResult, Port
from engine.runtime.trace import write_trace
from engine.session.arguments import ModelMetadata, NodeArg
from engine.session.binding import IOBinding
from engine.session.options import RunOptions, SessionOptions
from engine.session.providers import Placement, Provider, placement, shared_core
from engine.session.values import OrtValue, feeds_of, wrapped

if TYPE_CHECKING:
    from engine.plugin_api import ExecutableNetwork
    from engine.runtime import AsyncInferRequest
    from engine.runtime.result import ProfilingInfo

Feed: TypeAlias = Mapping[str, Any]

_PROFILED_RUNS: Final = 1000


class InferenceSession:
    """A model, compiled for the devices that `providers` stand for. Runs may be called from any thread.

        session = InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        session.get_inputs()[0].name
        (y,) = session.run(None, {"x": array})

    Errors are this engine's: `ModelReadError`, `UnsupportedError`, `InputError` and others, all `EngineError`.

    Args:
        path_or_bytes: a path, or the content of an ONNX file.
        sess_options: see `SessionOptions`.
        providers: names, or pairs of a name and options: "CPUExecutionProvider", or any device string of `Core`.
            Several stand for HETERO on them. An `EngineWarning` names one that is not available. Without one: CPU.
        provider_options: options for each of `providers`.
        disabled_optimizers: without effect.
        core: the core to use, with its extensions and defaults; one that sessions share by default.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        disabled_optimizers: object = None,
        core: Core | None = None,
    ) -> None:
        self._source = path_or_bytes
        self._options = SessionOptions() if sess_options is None else sess_options
        self._options.check()
        self._core = shared_core() if core is None else core
        self._lock = threading.Lock()
        self._profiles: deque[ProfilingInfo] | None = None
        self._began_ns = time.time_ns()
        if self._options.enable_profiling:
            self._profiles = deque(maxlen=_PROFILED_RUNS)
        self._compile(placement(self._core, providers, provider_options))

    def _compile(self, where: Placement) -> None:
        model = self._core.read_model(self._source)
        _fix_lengths(model, self._options.free_dimensions)
        self._metadata = ModelMetadata.of(model)
        self._placement = where
        self._network = self._core.compile_part(model, where.device, self._config(where))
        warn_of(self._network, 4)  # the warning points to the line that calls the method that calls this one
        self._inputs = {port.name: port for port in (*self._network.inputs, *self._network.overridable)}
        self._requests: list[AsyncInferRequest] = []

    def _config(self, where: Placement) -> dict[str, Any]:
        options, declared = self._options, self._core.supported_properties(where.device)
        wanted: dict[str, Any] = {}
        if options.intra_op_num_threads:
            wanted["INFERENCE_NUM_THREADS"] = options.intra_op_num_threads
        if options.use_deterministic_compute:
            wanted["COMPILE_EFFORT"] = "none"
        if options.enable_profiling:
            wanted["PERF_COUNT"] = True
        return {**{name: value for name, value in wanted.items() if name in declared}, **where.config}

    # -- inference ----------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Feed, run_options: RunOptions | None = None
    ) -> list[Any]:
        """Run one inference: the named outputs, or all if `output_names` is None or empty.

        Tensors are numpy arrays, sequences lists, maps dicts. An input is an array, an `OrtValue`, or a list of
        numbers. Raises `InputError` for inputs that do not fit and outputs that the model does not have, `Cancelled` if
        `run_options.terminate` is set, and other `EngineError`s of the device.
        """
        indices = self._indices(output_names)
        result = self._infer(feeds_of(input_feed, self._inputs), run_options)
        return [result[index] for index in indices]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Like `run`, with inputs and outputs as `OrtValue`s."""
        values, ports = self.run(output_names, input_dict_ort_values, run_options), self._network.outputs
        indices = self._indices(output_names)
        return [wrapped(value, ports[index]) for value, index in zip(values, indices, strict=True)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in the background, then call `callback(outputs, user_data, error)`; one of outputs and error is empty."""
        indices = self._indices(output_names)
        if run_options is not None:
            run_options.require_not_terminated()
        future = self._network.submit(feeds_of(input_feed, self._inputs))

        def finish(done: Future[InferResult]) -> None:
            if run_options is not None:
                run_options.unwatch(future)
            error = Cancelled("the run was cancelled") if done.cancelled() else done.exception()
            if error is None:
                result = done.result()
                callback([result[index] for index in indices], user_data, "")
            else:
                callback([], user_data, str(error))

        if run_options is not None:
            run_options.watch(future)
        future.add_done_callback(finish)

    def _indices(self, names: Sequence[str] | None) -> Sequence[int]:
        if not names:
            return range(len(self._network.outputs))
        if isinstance(names, str):
            raise InputError(f"output_names is {names!r}; expected a list of names, or None for all outputs")
        return [self._network.output_index(name) for name in names]

    def _infer(self, feeds: Feed, run_options: RunOptions | None) -> InferResult:
        if run_options is None and self._profiles is None:
            return self._network(feeds)
        try:
            request = self._requests.pop()
        except IndexError:  # checking first would race with other threads
            request = self._network.create_infer_request()
        try:
            return self._finished(request, feeds, run_options)
        finally:
            request.clear_tensors()
            self._requests.append(request)

    def _finished(self, request: AsyncInferRequest, feeds: Feed | None, run_options: RunOptions | None) -> InferResult:
        """Run a request, and cancel it as `run_options` says."""
        options = RunOptions() if run_options is None else run_options
        options.require_not_terminated()
        request.start_async(feeds)
        options.watch(request)
        try:
            request.wait()
        finally:
            options.unwatch(request)
        with self._lock:  # another thread may end profiling
            if self._profiles is not None:
                self._profiles.append(request.profiling_info)
        return request.results

    # -- bound values -------------------------------------------------------------------------------------

    def io_binding(self) -> IOBinding:
        """Make an empty binding, for inputs and outputs that are bound before a run."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run one inference on bound values; `IOBinding.get_outputs` has the results. Raises as `run` does."""
        iobinding.require_outputs()
        self._finished(iobinding.request, None, run_options)
        iobinding.take_results()

    @property
    def network(self) -> ExecutableNetwork:
        """The compiled model, with all that `ExecutableNetwork` has beyond a session."""
        return self._network

    @property
    def input_ports(self) -> Mapping[str, Port]:
        """The network's inputs, and the initializers that a run may override, by name."""
        return self._inputs

    # -- the model ----------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that every run needs, in the model's order."""
        return [NodeArg.of(port.name, port.type) for port in self._network.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the model's order."""
        return [NodeArg.of(port.name, port.type) for port in self._network.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that the file also lists as inputs: a run may give them other values.

        The first run that gives one takes as long as compiling (`ExecutableNetwork.overridable`).
        """
        return [NodeArg.of(port.name, port.type) for port in self._network.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """The metadata in the model's file."""
        return self._metadata

    # -- options ------------------------------------------------------------------------------------------

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The names of the providers in use, in the order of preference."""
        return list(self._placement.options)

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options of each provider in use, by its name; a copy."""
        return {name: dict(options) for name, options in self._placement.options.items()}

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Compile the model again, for other providers. Not while runs are in progress."""
        self._compile(placement(self._core, providers, provider_options))

    def enable_fallback(self) -> None:
        """Do nothing: an error is raised where it occurs, and never answered by another device."""

    def disable_fallback(self) -> None:
        """Do nothing: sessions never fall back to other providers."""

    # -- profiling ----------------------------------------------------------------------------------------

    def get_profiling_start_time_ns(self) -> int:
        """When the session was made, in nanoseconds since 1970."""
        return self._began_ns

    def end_profiling(self) -> str:
        """Write a trace of the last 1,000 runs, end profiling, and return the file's path; "" if it was not enabled.

        https://ui.perfetto.dev shows the file. Raises `OSError`.
        """
        with self._lock:
            profiles, self._profiles = self._profiles, None
        if profiles is None:
            return ""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(self._began_ns / 1e9))
        path = f"{self._options.profile_file_prefix}_{stamp}.json"
        try:
            write_trace(list(profiles), path, self._network.name)
        except OSError:
            self._profiles = profiles  # so that the caller can try again
            raise
        return path


def _fix_lengths(model: Model, lengths: Mapping[str, int]) -> None:
    """Give inputs the lengths that `add_free_dimension_override_by_name` names."""
    shapes: dict[str | int, PartialShape] = {}
    for parameter in model.parameters:
        if not isinstance(parameter.type, TensorType) or parameter.type.shape.rank.is_dynamic:
            continue
        dims = parameter.type.shape.dims
        if any(dim.symbol in lengths for dim in dims):
            fixed = [dim if dim.symbol is None else lengths.get(dim.symbol, dim) for dim in dims]
            shapes[parameter.friendly_name] = PartialShape(fixed)
    if shapes:
        model.reshape(shapes)
