"""The executable network: the transformed graph, its weights on the device, and a plan for each set of shapes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.errors import BlobFormatError, PropertyError
from engine.ir import Model
from engine.ir.sizes import array_bytes
from engine.lowering import (
    GraphNetwork,
    PreparedGraph,
    check_mode,
    check_precision,
    constants_of,
    known_shapes,
    read_graph,
)
from engine.lowering.tuning import read_choices, write_choices
from engine.plugin_api import (
    BlobReader,
    BlobWriter,
    Config,
    Executor,
    MemoryForecast,
    Pipeline,
    RemoteContext,
    SyncInferRequest,
    ThreadExecutor,
)
from engine.properties import ALLOW_SHARED_CACHE, CACHE_DIR, DEVICE_ID, MEMORY_BUDGET, NUM_STREAMS
from engine_opencl.binaries import sealed, unsealed
from engine_opencl.compiler import ADVICE
from engine_opencl.devices.device import OpenclDevice, device_of
from engine_opencl.execution.pool import ContextPool
from engine_opencl.execution.request import OpenclInferRequest
from engine_opencl.lowering import OpenclGraph, lowerings_of
from engine_opencl.plan import WEIGHT
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.properties import (
    COMPILE_EFFORT,
    DEVICE_NAME,
    EXECUTION_MODE_HINT,
    INFERENCE_PRECISION_HINT,
    KERNEL_CHOICES,
    KERNEL_TRIAL_SECONDS,
    PLAN_CACHE_SIZE,
    TRUST_BLOB,
)
from engine_opencl.remote.context import OpenclContext
from engine_opencl.transform import prepare_model
from engine_opencl.tuning.tuner import OpenclTuner

if TYPE_CHECKING:
    from engine_opencl.plugin import OpenclPlugin

_log = logging.getLogger("engine.opencl")
PROGRAMS = "programs/"
CHOICES = "choices"
COMPILER = "compiler"
"""The section with the device and driver that the programs and kernel choices are for."""
PRECISION = "precision"
"""The section with the storage type of values of f32 models."""
MODE = "mode"
"""The section with the execution mode."""
_PERFORMANCE, _ACCURACY = "PERFORMANCE", "ACCURACY"
_IN_FLIGHT = 2
"""Requests that keep a device busy: one computes while data of another is transferred."""


class OpenclNetwork(GraphNetwork["OpenclPlugin"]):
    """Compilation transforms the graph and, if all lengths are known, plans it and compiles the kernels."""

    metrics = (KERNEL_CHOICES,)
    device: OpenclDevice
    programs: Programs
    is_accurate: bool

    @classmethod
    def compiled(
        cls, plugin: OpenclPlugin, config: Config, model: Model, context: RemoteContext | None = None
    ) -> OpenclNetwork:
        """Compile `model` for the device in `config`, or for the device of `context`."""
        network = cls(plugin, config, model)
        network.is_accurate = is_accurate(config)
        network.place(config, context)
        network.load(prepare_model(model, network.device.facts, config[INFERENCE_PRECISION_HINT]))
        return network

    @classmethod
    def imported(
        cls, plugin: OpenclPlugin, config: Config, blob: BlobReader, context: RemoteContext | None = None
    ) -> OpenclNetwork:
        """Load an exported network: its graph is already transformed. Raises `UnsupportedError`."""
        network = cls(plugin, config, blob.manifest)
        check_precision(network.name, _precision_of(blob), config[INFERENCE_PRECISION_HINT])
        network.is_accurate = _mode_of(blob) == _ACCURACY
        check_mode(network.name, made_accurate=network.is_accurate, is_accurate=is_accurate(config))
        network.place(config, context)
        prepared = PreparedGraph.of(read_graph(blob), lowerings_of(network.device.facts))
        made_by, here = bytes(blob.section(COMPILER)).decode(errors="replace"), network.device.identity
        choices = read_choices(bytes(blob.section(CHOICES)))
        if made_by != here:
            _log.warning(
                "OPENCL: network `%s` was compiled for %s; its kernels are chosen and compiled again for %s",
                network.name,
                made_by,
                here,
            )
        programs = _programs_of(network.name, blob)  # also if they are not used, since any damage is an error
        if not (config[TRUST_BLOB] or blob.is_trusted):
            programs = {}
            _log.info("OPENCL: network `%s`: the blob's compiled programs are not used; see TRUST_BLOB", network.name)
        network.load(prepared, programs, choices if made_by == here else None)
        return network

    def place(self, config: Config, context: RemoteContext | None) -> None:
        """Decide on the device, and on the programs that are compiled in its OpenCL context."""
        if context is None:
            self.device = device_of(config[DEVICE_ID], config[DEVICE_NAME])
            self.programs = self.plugin.programs(self.device)
            return
        assert isinstance(context, OpenclContext)
        if config[DEVICE_ID] or config[DEVICE_NAME]:
            stated = device_of(config[DEVICE_ID], config[DEVICE_NAME])
            if stated.device_id != context.opencl.device_id:
                raise PropertyError(
                    f"OPENCL: {context} is on device {context.opencl.device_id}, and the configuration selects "
                    f"{stated.device_id}; omit {DEVICE_ID.name} and {DEVICE_NAME.name}"
                )
        self.device, self.programs = context.opencl, context.programs

    def load(
        self, prepared: OpenclGraph, programs: Mapping[str, bytes] | None = None, choices: dict[str, str] | None = None
    ) -> None:
        """The steps shared by compiling and importing.

        `programs`: already compiled ones, by key; `choices`: the chosen kernels, by site.
        """
        self.prepared = prepared
        self.graph = graph = prepared.graph
        for number, node in enumerate(constants_of(graph)):
            node.rt_info[WEIGHT] = number
        prepared.require_kernels("OPENCL", ADVICE)
        how = Building(
            self.config[CACHE_DIR],
            self.config[KERNEL_TRIAL_SECONDS],
            programs or {},
            self.config[ALLOW_SHARED_CACHE],
        )
        device_programs = self.programs
        self.tuner = OpenclTuner(self.device, device_programs, how, self.config[COMPILE_EFFORT], choices=choices or {})
        size, profiling = self.config[PLAN_CACHE_SIZE], self.is_profiling
        self.pool = ContextPool(
            prepared,
            self.device,
            device_programs,
            how,
            self.tuner,
            size,
            profiling,
            is_accurate=self.is_accurate,
            budget=self.config[MEMORY_BUDGET],
        )
        self.upload_executor: Executor = ThreadExecutor(f"OPENCL:{self.name}:upload")
        self.compute_executor: Executor = ThreadExecutor(f"OPENCL:{self.name}:compute")
        self.download_executor: Executor = ThreadExecutor(f"OPENCL:{self.name}:download")
        if prepared.is_static:
            self.pool.put(self.pool.take_for(known_shapes(graph)))
        self.tuner.end()

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request; it refers to the contexts, not the network: a reference cycle would delay freeing both."""
        return OpenclInferRequest(self, self.pool)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """Uploads, kernels and downloads on separate threads, so that several requests overlap.

        The thread that enqueues kernels never waits: the next request's kernels are enqueued before the last one's end.
        """
        return [
            (self.upload_executor, request.infer_preprocess),
            (self.compute_executor, request.start_pipeline),
            (self.download_executor, request.wait_pipeline),
            (self.download_executor, request.infer_postprocess),
        ]

    def preferences(self) -> Mapping[str, str]:
        """The device and driver for which kernels were chosen and compiled."""
        return {"driver": self.device.identity}

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the sections that `imported` reads."""
        super().export_sections(writer)
        writer.add_section(PRECISION, self.config[INFERENCE_PRECISION_HINT].encode())
        writer.add_section(MODE, mode_text(is_accurate=self.is_accurate).encode())
        writer.add_section(COMPILER, self.device.identity.encode())
        writer.add_section(CHOICES, write_choices(self.tuner.choices))
        for key, binary in self.pool.binaries().items():
            writer.add_section(PROGRAMS + key, sealed(key, binary))

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """The plan of these shapes has the sizes; if there is none yet, one is made, without programs, and dropped."""
        planned = self.pool.forecast(tuple(shapes))
        count = len(self.outputs)
        return MemoryForecast.of(
            weights=planned.weights,
            arena=planned.arena,
            scratch=planned.staged,
            states=sum(planned.results[count:]),
            inputs=sum(array_bytes(port.type, shape) for port, shape in zip(self.inputs, shapes, strict=False)),
            outputs=sum(planned.results[:count]),
            streams=self.config[NUM_STREAMS] or 1,
        )

    def metric(self, name: str) -> object:
        """Several requests overlap their transfers, also with one stream."""
        match name:
            case "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
                return max(self.config[NUM_STREAMS], _IN_FLIGHT)
            case KERNEL_CHOICES.name:
                return self.tuner.described()
        return None


def is_accurate(config: Config) -> bool:
    """Whether inexact kernels are ruled out. Raises `PropertyError` if another property asks for less than f32."""
    if config[EXECUTION_MODE_HINT] != _ACCURACY:
        return False
    if config[INFERENCE_PRECISION_HINT] != INFERENCE_PRECISION_HINT.default:
        raise PropertyError(
            f"{EXECUTION_MODE_HINT.name} is {_ACCURACY}, but {INFERENCE_PRECISION_HINT.name} is "
            f"{config[INFERENCE_PRECISION_HINT]}; expected {INFERENCE_PRECISION_HINT.default}: omit one of them"
        )
    return True


def mode_text(*, is_accurate: bool) -> str:
    """The content of the section MODE."""
    return _ACCURACY if is_accurate else _PERFORMANCE


def _mode_of(blob: BlobReader) -> str:
    made = bytes(blob.section(MODE)).decode(errors="replace")
    if made not in (EXECUTION_MODE_HINT.choices or ()):
        raise BlobFormatError(f"section {MODE} of the blob is damaged: {made[:80]!r}")
    return made


def _precision_of(blob: BlobReader) -> str:
    made = bytes(blob.section(PRECISION)).decode(errors="replace")
    if made not in (INFERENCE_PRECISION_HINT.choices or ()):
        raise BlobFormatError(f"section {PRECISION} of the blob is damaged: {made[:80]!r}")
    return made


def _programs_of(name: str, blob: BlobReader) -> dict[str, bytes]:
    sections = [each for each in blob.section_names if each.startswith(PROGRAMS)]
    read = {each.removeprefix(PROGRAMS): bytes(blob.section(each)) for each in sections}
    programs = {key: binary for key, content in read.items() if (binary := unsealed(key, content))}
    if len(programs) < len(read):
        _log.warning(
            "OPENCL: %d of %d compiled programs in the blob of network `%s` are damaged or belong to other kernels, "
            "and are compiled again from source",
            len(read) - len(programs),
            len(read),
            name,
        )
    return programs
