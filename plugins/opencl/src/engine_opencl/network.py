"""The executable network: the transformed graph, its weights on the device, and a plan for each set of shapes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import BlobFormatError, InputError, ModelError, OutOfMemoryError, UnsupportedError
from engine.ir import Constant, Model, Parameter, PartialShape, TensorType
from engine.onnx import join_model, split_model
from engine.plugin_api import (
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Executor,
    Pipeline,
    SyncInferRequest,
    ThreadExecutor,
)
from engine.properties import CACHE_DIR, DEVICE_ID, NUM_STREAMS
from engine.runtime.lifecycle import ForkSafeLock
from engine_opencl.compiler import build_plan, folded, require_supported
from engine_opencl.devices.device import OpenclDevice, device_of, require_first_process
from engine_opencl.execution.context import Context
from engine_opencl.execution.request import OpenclInferRequest
from engine_opencl.memory.weights import Weights
from engine_opencl.plan import WEIGHT, Plan
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.properties import (
    COMPILE_EFFORT,
    DEVICE_NAME,
    INFERENCE_PRECISION_HINT,
    KERNEL_CHOICES,
    KERNEL_TRIAL_SECONDS,
    PLAN_CACHE_SIZE,
)
from engine_opencl.transform import transform_model
from engine_opencl.tuning.choices import read_choices, write_choices
from engine_opencl.tuning.tuner import Tuner

if TYPE_CHECKING:
    from engine_opencl.plugin import OpenclPlugin

_log = logging.getLogger("engine.opencl")
GRAPH = "graph"
WEIGHTS = "weights/"
PROGRAMS = "programs/"
CHOICES = "choices"
COMPILER = "compiler"
"""The section that says which device and driver made the programs, and for which kernels were chosen."""
PRECISION = "precision"
"""The section that says how values of f32 models are stored."""
_IN_FLIGHT = 2
"""Requests that keep a device busy: one computes while another's data moves."""


class OpenclNetwork(ExecutableNetwork):
    """Compiling is: transform the graph, plan it where all lengths are known, compile the kernels."""

    metrics = (KERNEL_CHOICES,)
    graph: Model
    device: OpenclDevice

    @classmethod
    def compiled(cls, plugin: OpenclPlugin, config: Config, model: Model) -> OpenclNetwork:
        """Compile the user's model."""
        network = cls(plugin, config, model)
        network.device = device_of(config[DEVICE_ID], config[DEVICE_NAME])
        network.load(transform_model(model, config[INFERENCE_PRECISION_HINT]))
        return network

    @classmethod
    def imported(cls, plugin: OpenclPlugin, config: Config, blob: BlobReader) -> OpenclNetwork:
        """Take up an exported network: its graph is transformed already. Raises `UnsupportedError`."""
        network = cls(plugin, config, blob.manifest)
        _require_precision(network.name, blob, config[INFERENCE_PRECISION_HINT])
        network.device = device_of(config[DEVICE_ID], config[DEVICE_NAME])
        graph = join_model(bytes(blob.section(GRAPH)), lambda name: blob.section(WEIGHTS + name))
        made_by, here = bytes(blob.section(COMPILER)).decode(errors="replace"), network.device.identity
        choices = read_choices(bytes(blob.section(CHOICES)))
        if made_by != here:
            _log.warning(
                "OPENCL: network `%s` brings programs for %s, and kernels chosen for that; they are compiled, and "
                "chosen, again for %s",
                network.name,
                made_by,
                here,
            )
        network.load(graph, _programs_of(blob), choices if made_by == here else None)
        return network

    def load(
        self, graph: Model, programs: Mapping[str, bytes] | None = None, choices: dict[str, str] | None = None
    ) -> None:
        """What compiling and importing share.

        `programs`: those that are compiled already, by key; `choices`: of kernels, by site.
        """
        self.graph = graph
        for number, node in enumerate(n for n in graph.ordered_nodes() if isinstance(n, Constant)):
            node.rt_info[WEIGHT] = number
        require_supported(graph)
        plugin: Any = self.plugin
        how = Building(self.config[CACHE_DIR], self.config[KERNEL_TRIAL_SECONDS], programs or {})
        device_programs = plugin.programs(self.device)
        self.tuner = Tuner(self.device, device_programs, how, self.config[COMPILE_EFFORT], choices or {})
        self.pool = ContextPool(self, device_programs, how, self.tuner)
        self.upload_executor: Executor = ThreadExecutor(f"OPENCL:{self.name}:upload")
        self.compute_executor: Executor = ThreadExecutor(f"OPENCL:{self.name}:compute")
        self.download_executor: Executor = ThreadExecutor(f"OPENCL:{self.name}:download")
        if all(_is_static(parameter) for parameter in graph.parameters):
            self.pool.put(self.pool.take_for(tuple(p.output(0).shape.get_shape() for p in graph.parameters)))
        self.tuner.end()

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request; it gets the contexts, not the network: a cycle would delay freeing both."""
        return OpenclInferRequest(self, self.pool)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """Uploads, kernels and downloads on threads of their own, so that those of several requests overlap.

        Nobody waits on the thread that hands kernels over: the next request's are there before the last one's end.
        """
        assert isinstance(request, OpenclInferRequest)
        return [
            (self.upload_executor, request.infer_preprocess),
            (self.compute_executor, request.start_pipeline),
            (self.download_executor, request.wait_pipeline),
            (self.download_executor, request.infer_postprocess),
        ]

    def export_sections(self, writer: BlobWriter) -> None:
        """Write what `imported` reads."""
        skeleton, weights = split_model(self.graph)
        writer.add_section(GRAPH, skeleton)
        for name, _, data in weights:
            writer.add_section(WEIGHTS + name, data)
        writer.add_section(PRECISION, self.config[INFERENCE_PRECISION_HINT].encode())
        writer.add_section(COMPILER, self.device.identity.encode())
        writer.add_section(CHOICES, write_choices(self.tuner.choices))
        for key, binary in self.pool.binaries().items():
            writer.add_section(PROGRAMS + key, binary)

    def metric(self, name: str) -> object:
        """Several requests overlap their transfers, also with one stream."""
        match name:
            case "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
                return max(self.config[NUM_STREAMS], _IN_FLIGHT)
            case KERNEL_CHOICES.name:
                return self.tuner.described()
        return None


class ContextPool:
    """Plans by input shapes, and contexts that wait for their next inference. Thread-safe."""

    def __init__(self, network: OpenclNetwork, programs: Programs, how: Building, tuner: Tuner) -> None:
        self._graph, self._device, self._programs = network.graph, network.device, programs
        self._how, self._tuner = how, tuner
        self._size, self._profiling = network.config[PLAN_CACHE_SIZE], network.is_profiling
        self._weights = Weights(network.device)
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._idle: dict[int, list[Context]] = {}
        self._lock = ForkSafeLock()

    def take(self, values: Sequence[Any]) -> Context:
        """A context for inputs of these shapes, for the caller alone. Raises `InputError`, `OutOfMemoryError`."""
        return self.take_for(tuple(getattr(value, "shape", None) for value in values))

    def take_for(self, shapes: tuple[tuple[int, ...] | None, ...]) -> Context:
        """As `take`; an input that is no tensor has no shape."""
        require_first_process()
        plan = self._plan(shapes)
        with self._lock:
            waiting = self._idle.get(id(plan))
            if waiting:
                return waiting.pop()
        try:
            return self._new_context(plan)
        except OutOfMemoryError:
            with self._lock:
                has_idle = bool(self._idle)
                self._idle.clear()
            if not has_idle:
                raise
            # What waits for inputs of other shapes has made room.
            return self._new_context(plan)

    def _new_context(self, plan: Plan) -> Context:
        return Context(self._device, plan, self._programs, self._weights, profiling=self._profiling)

    def put(self, context: Context) -> None:
        """Give a context back; that of a plan that is no longer kept is let go."""
        context.release()
        with self._lock:
            if any(plan is context.plan for plan in self._plans.values()):
                self._idle.setdefault(id(context.plan), []).append(context)

    def binaries(self) -> dict[str, bytes]:
        """The compiled programs of all plans that are kept, by key."""
        with self._lock:
            built = {source: program for plan in self._plans.values() for source, program in plan.programs.items()}
        return self._programs.binaries(built)

    def _plan(self, shapes: tuple[Any, ...]) -> Plan:
        with self._lock:
            plan = self._plans.get(shapes)
            if plan is not None:
                self._plans.move_to_end(shapes)
                return plan
            graph = specialized(self._graph, shapes)
            folded(graph)
            plan = build_plan(graph, self._device.facts, self._tuner)
            plan.programs.update(self._programs.build(plan.launches, plan.weights, self._how))
            self._plans[shapes] = plan
            if len(self._plans) > self._size:
                _, dropped = self._plans.popitem(last=False)
                self._idle.pop(id(dropped), None)
                self._weights.keep({name for kept in self._plans.values() for name in kept.weights})
            return plan


def specialized(model: Model, shapes: Sequence[tuple[int, ...] | None]) -> Model:
    """A copy of `model` for inputs of known shapes, with all types inferred again; None leaves an input as it is."""
    copy = model.clone()
    for parameter, shape in zip(copy.parameters, shapes, strict=True):
        if shape is not None and isinstance(parameter.type, TensorType):
            parameter.type = TensorType(parameter.type.element_type, PartialShape(shape))
    try:
        copy.validate()
    except ModelError as e:
        listed = ", ".join(f"{p.friendly_name} {list(s or ())}" for p, s in zip(copy.parameters, shapes, strict=True))
        raise InputError(f"model `{model.name}` cannot take inputs {listed}: {e}") from e
    return copy


def _require_precision(name: str, blob: BlobReader, asked: str) -> None:
    made = bytes(blob.section(PRECISION)).decode(errors="replace")
    if made not in (INFERENCE_PRECISION_HINT.choices or ()):
        raise BlobFormatError(f"section {PRECISION} of the blob is damaged: {made[:80]!r}")
    if made != asked:
        raise UnsupportedError(
            f"{name}: the blob computes in {made}, INFERENCE_PRECISION_HINT asks for {asked}; leave the hint out, or "
            "compile the model for it"
        )


def _programs_of(blob: BlobReader) -> dict[str, bytes]:
    names = [name for name in blob.section_names if name.startswith(PROGRAMS)]
    return {name.removeprefix(PROGRAMS): bytes(blob.section(name)) for name in names}


def _is_static(parameter: Parameter) -> bool:
    return isinstance(parameter.type, TensorType) and parameter.type.shape.is_static
