"""Devices that are wrong in one way outside of their arithmetic: properties, requests, memory, the process.

Each is TEMPLATE but for that fault; `test_lifecycle_mutants.py` names the check that finds it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine.plugin_api import (
    CONFIG,
    METRIC,
    BlobReader,
    Config,
    CoreHandle,
    DeadlineExceeded,
    EngineError,
    ExecutableNetwork,
    Executor,
    MemoryForecast,
    Model,
    Property,
    SyncInferRequest,
    ThreadExecutor,
)


class Network(TemplateNetwork):
    """TEMPLATE's network, with requests of a class that a mutant chooses."""

    request_class: ClassVar[type[TemplateInferRequest]] = TemplateInferRequest

    def create_infer_request_impl(self) -> SyncInferRequest:
        return self.request_class(self, self.program)


class Device(TemplatePlugin):
    """TEMPLATE, with networks of a class that a mutant chooses."""

    network_class: ClassVar[type[TemplateNetwork]] = Network

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return self.network_class.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return self.network_class.imported(self, config, blob)


FAULTY: dict[str, type[Device]] = {}


def device(cls: type[Device]) -> type[Device]:
    """Name the device after its class, and let an entry point find it under that name."""
    cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()
    FAULTY[cls.name] = globals()[cls.name] = cls
    return cls


def request_fault(cls: type[TemplateInferRequest]) -> type[TemplateInferRequest]:
    """Make a device whose requests have the fault."""
    network = type("FaultyNetwork", (Network,), {"request_class": cls})
    device(type(cls.__name__, (Device,), {"network_class": network}))
    return cls


def network_fault(cls: type[Network]) -> type[Network]:
    """Make a device whose networks have the fault."""
    device(type(cls.__name__, (Device,), {"network_class": cls}))
    return cls


# -- properties ---------------------------------------------------------------------------------------------


@device
class ReportsAnotherNameEachTime(Device):
    readings = 0

    def metric(self, name: str, device_id: str) -> object:
        self.readings += 1
        return f"reading {self.readings}" if name == "FULL_DEVICE_NAME" else super().metric(name, device_id)


@device
class ReportsAnotherTypeLater(Device):
    properties = (*Device.properties, Property("MUTANT_LOAD", int, 0, METRIC, "How busy the device is."))
    readings = 0

    def metric(self, name: str, device_id: str) -> object:
        if name != "MUTANT_LOAD":
            return super().metric(name, device_id)
        self.readings += 1
        return 1 if self.readings == 1 else 1.0


@device
class ChangesItsIds(Device):
    asked = 0

    def device_ids(self) -> tuple[str, ...]:
        self.asked += 1
        return ("0", "1") if self.asked % 2 else ("1", "0")


@device
class RunsOnTheFirstDevice(Device):
    class Network(Network):
        def metric(self, name: str) -> object:
            return (f"{self.plugin.name}.0",) if name == "EXECUTION_DEVICES" else super().metric(name)

    network_class = Network

    def device_ids(self) -> tuple[str, ...]:
        return "0", "1"


@device
class HasAnUndocumentedKey(Device):
    properties = (*Device.properties, Property("MUTANT_MODE", bool, False, CONFIG, " "))


@network_fault
class IgnoresStreams(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.task_executor = ThreadExecutor("one thread")


@network_fault
class UsesTooManyStreams(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.task_executor = ThreadExecutor("eight threads", 8)


@network_fault
class IgnoresExclusiveRequests(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.task_executor = ThreadExecutor("its own", self.config["NUM_STREAMS"] or 1)


@network_fault
class IgnoresPerfCount(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_profiling = False


@network_fault
class ProfilesAlways(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_profiling = True


@network_fault
class AsksForMoreWithLatency(Network):
    def metric(self, name: str) -> object:
        if name == "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
            return 4 if self.config["PERFORMANCE_HINT"] == "LATENCY" else 1
        return super().metric(name)


@device
class LosesConfigOnImport(Device):
    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return super().import_network(blob, self.config)


@device
class LosesItsOwnKeyOnImport(Device):
    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return super().import_network(blob, config.merged({"TEMPLATE_TRANSFORMATIONS": True}))


@device
class KeepsConfigOnImport(Device):
    """Only what was exported counts, whatever the import says."""

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        exported = {name: value for name, value in blob.manifest.config.items() if name in config}
        return super().import_network(blob, config.merged(exported))


@device
class IgnoresChangedDefaults(Device):
    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        self.first = self.config

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return super().compile_model(model, self.first)


# -- executors and outcomes ---------------------------------------------------------------------------------


class _Forwarding(Executor):
    """An executor on top of one thread."""

    name = "forwarding"

    def __init__(self) -> None:
        self.inner = ThreadExecutor("forwarding")
        self.count = 0


class _Twice(_Forwarding):
    def submit(self, task: Any) -> None:
        self.inner.submit(task)
        self.inner.submit(task)


class _Losing(_Forwarding):
    def submit(self, task: Any) -> None:
        self.count += 1
        if self.count % 50:
            self.inner.submit(task)


class _Shuffling(_Forwarding):
    """Takes the newest of the tasks that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Any] = deque()

    def submit(self, task: Any) -> None:
        self.waiting.append(task)
        self.inner.submit(self.run_newest)

    def run_newest(self) -> None:
        time.sleep(0.0005)
        self.waiting.pop()()


class _Deaf(_Forwarding):
    def submit(self, task: Any) -> None:
        pass


@network_fault
class LosesItsProgramOnRelease(Network):
    def release_caches(self) -> None:
        self.program = None  # type: ignore[assignment]


@network_fault
class CountsMemoryInWords(Network):
    def memory(self) -> dict[str, int]:
        return {"weights": "4 KB"}  # type: ignore[dict-item]


@network_fault
class CallsBackTwice(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.callback_executor = _Twice()


@network_fault
class CallsBackNever(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.callback_executor = _Deaf()


@network_fault
class RunsTasksTwice(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.task_executor = _Twice()


@network_fault
class LosesTasks(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.task_executor = _Losing()


@network_fault
class RunsTasksInAnotherOrder(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.task_executor = _Shuffling()


@request_fault
class NoticesCancellationAtTheEnd(TemplateInferRequest):
    def start_pipeline(self) -> None:
        self.is_deaf = True
        self._run_operations()
        self.is_deaf = False

    def check_cancelled(self) -> None:
        if not getattr(self, "is_deaf", False):
            super().check_cancelled()


@request_fault
class SwallowsTheDeadline(TemplateInferRequest):
    def check_cancelled(self) -> None:
        with contextlib.suppress(DeadlineExceeded):
            super().check_cancelled()


@request_fault
class SwallowsCancelling(TemplateInferRequest):
    def request_cancel(self, error: EngineError) -> None:
        pass


@request_fault
class IsStuckAfterAnError(TemplateInferRequest):
    is_stuck = False

    def abort_pipeline(self) -> None:
        super().abort_pipeline()
        self.is_stuck = True

    def infer_preprocess(self) -> None:
        if self.is_stuck:
            raise RuntimeError("the device is stuck")
        super().infer_preprocess()


@request_fault
class FailsWhenAborted(TemplateInferRequest):
    """Keeps its lock when an inference is aborted."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock = threading.Lock()

    def infer_preprocess(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("the device is locked")
        super().infer_preprocess()

    def infer_postprocess(self) -> None:
        super().infer_postprocess()
        self.lock.release()


@request_fault
class TurnsErrorsIntoZeros(TemplateInferRequest):
    def start_pipeline(self) -> None:
        try:
            super().start_pipeline()
        except Exception:
            for slot in self.program.outputs:
                self.memory[slot] = np.zeros((3, 3), np.float32)


@request_fault
class RepeatsFormerResults(TemplateInferRequest):
    """Takes an array that it knows for the values that it had."""

    known: tuple[int, ...] = ()

    def infer_postprocess(self) -> None:
        arrays = tuple(map(id, self.inputs))
        if arrays != self.known:
            self.known, self.former = arrays, [self.memory[slot] for slot in self.program.outputs]
        for index, value in enumerate(self.former):
            self.store_output(index, value)


@request_fault
class IgnoresOutputTensors(TemplateInferRequest):
    def set_output_tensor(self, key: str | int, array: Any) -> None:
        pass


# -- memory -------------------------------------------------------------------------------------------------


@network_fault
class LeaksRequests(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.leaked: list[SyncInferRequest] = []

    def create_infer_request_impl(self) -> SyncInferRequest:
        self.leaked.append(super().create_infer_request_impl())
        return self.leaked[-1]


@device
class LeaksNetworks(Device):
    leaked: ClassVar[list[ExecutableNetwork]] = []

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        self.leaked.append(super().compile_model(model, config))
        return self.leaked[-1]


@device
class LeaksCores(Device):
    leaked: ClassVar[list[Device]] = []

    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        self.leaked.append(self)


@request_fault
class HoldsInputs(TemplateInferRequest):
    def infer_preprocess(self) -> None:
        super().infer_preprocess()
        self.held = list(self.inputs)


@request_fault
class HoldsInputsUntilCleared(TemplateInferRequest):
    def infer_preprocess(self) -> None:
        super().infer_preprocess()
        self.held = [*getattr(self, "held", []), *self.inputs]

    def clear_tensors(self) -> None:
        super().clear_tensors()
        self.held = []


@request_fault
class HoldsOutputs(TemplateInferRequest):
    def infer_postprocess(self) -> None:
        super().infer_postprocess()
        self.held = [self.get_output_tensor(index) for index in range(len(self.program.outputs))]


@request_fault
class HoldsOutputTensors(TemplateInferRequest):
    def set_output_tensor(self, key: str | int, array: Any) -> None:
        super().set_output_tensor(key, array)
        self.held = [*getattr(self, "held", []), array]


@device
class GrowsWithEachCompilation(Device):
    grown: ClassVar[list[bytes]] = []

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        self.grown.append(bytes(4096))
        return super().compile_model(model, config)


@device
class GrowsNatively(Device):
    """With memory that Python does not know of."""

    grown: ClassVar[list[mmap.mmap]] = []

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        self.grown.append(mmap.mmap(-1, 1 << 20))
        self.grown[-1].write(b"x" * (1 << 20))
        return super().compile_model(model, config)


@request_fault
class GrowsWithEachInference(TemplateInferRequest):
    grown: ClassVar[list[Any]] = []

    def infer_postprocess(self) -> None:
        super().infer_postprocess()
        self.grown.append(np.zeros(64))


@network_fault
class GrowsWithEachRequest(Network):
    grown: ClassVar[dict[int, bytes]] = {}

    def create_infer_request_impl(self) -> SyncInferRequest:
        self.grown[len(self.grown)] = bytes(4096)
        return super().create_infer_request_impl()


@device
class LeavesFilesOpen(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        os.open(os.devnull, os.O_RDONLY)
        return super().compile_model(model, config)


# -- sharing ------------------------------------------------------------------------------------------------


@request_fault
class SharesStaging(TemplateInferRequest):
    """Requests copy their inputs to the same place before they run."""

    staging: ClassVar[dict[int, Any]] = {}

    def infer_preprocess(self) -> None:
        super().infer_preprocess()
        for slot in self.program.inputs:
            self.staging[slot] = self.memory[slot]

    def start_pipeline(self) -> None:
        for slot in self.program.inputs:
            self.memory[slot] = self.staging[slot]
        super().start_pipeline()


@request_fault
class SharesScratch(TemplateInferRequest):
    """Requests have one scratch buffer within a stage."""

    scratch: ClassVar[dict[tuple[int, ...], Any]] = {}

    def start_pipeline(self) -> None:
        value = self.memory[self.program.inputs[0]]
        scratch = self.scratch.setdefault(value.shape, np.empty_like(value))
        np.copyto(scratch, value)
        time.sleep(0.002)
        self.memory[self.program.inputs[0]] = scratch.copy()
        super().start_pipeline()


@device
class SharesConfigBetweenCores(Device):
    shared: ClassVar[dict[str, Any]] = {}

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        defaults = self.config
        self.shared.update({n: defaults[n] for n in ("NUM_STREAMS", "PERF_COUNT") if defaults[n]})
        return super().compile_model(model, config.merged(self.shared))


@device
class SharesNetworksBetweenCores(Device):
    compiled: ClassVar[dict[str, ExecutableNetwork]] = {}

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        if model.name not in self.compiled:
            self.compiled[model.name] = super().compile_model(model, config)
        return self.compiled[model.name]


@network_fault
class SharesConstantsBetweenNetworks(Network):
    constants: ClassVar[dict[tuple[str, int], Any]] = {}

    def load(self, graph: Model) -> None:
        super().load(graph)
        for slot in self.program.constants:
            value = self.constants.setdefault((self.name, slot), self.program.memory[slot])
            self.program.memory[slot] = value


# -- the process --------------------------------------------------------------------------------------------


@device
class Prints(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        print(f"compiling {model.name}")
        return super().compile_model(model, config)


@device
class PrintsErrors(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        os.write(2, b"driver: warning: slow path\n")
        return super().compile_model(model, config)


@device
class LeavesFiles(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        Path(f"{model.name}.kernels").write_text("compiled")
        return super().compile_model(model, config)


@device
class ChangesTheDirectory(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        os.chdir("/")
        return super().compile_model(model, config)


@device
class TakesSignals(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        if threading.current_thread() is threading.main_thread() and sys.argv[0].endswith("observed_process.py"):
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        return super().compile_model(model, config)


@device
class ChangesNumpysErrors(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        np.seterr(all="ignore")
        return super().compile_model(model, config)


@device
class SeedsTheRandomState(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        np.random.seed(0)
        return super().compile_model(model, config)


@network_fault
class LeavesThreads(Network):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        threading.Thread(target=threading.Event().wait, name="left behind", daemon=True).start()


# -- profiles -----------------------------------------------------------------------------------------------


@request_fault
class NamesItsKernels(TemplateInferRequest):
    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        super().record_node(f"kernel_{op_type.lower()}", op_type, status, start_ns, end_ns)


@request_fault
class UsesAnotherClock(TemplateInferRequest):
    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        now = time.time_ns()
        super().record_node(name, op_type, status, now - (end_ns - start_ns), now)


@request_fault
class CountsTimesTwice(TemplateInferRequest):
    """Each node is said to take as long as all of them."""

    def infer_preprocess(self) -> None:
        self.begin_ns = time.perf_counter_ns()
        super().infer_preprocess()

    def start_pipeline(self) -> None:
        time.sleep(0.005)
        super().start_pipeline()

    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        super().record_node(name, op_type, status, self.begin_ns, end_ns)


@request_fault
class RecordsNoTimes(TemplateInferRequest):
    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        super().record_node(name, op_type, status, start_ns, start_ns)


@network_fault
class ForecastsTheSameForAnyShape(Network):
    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        return MemoryForecast.of(weights=0, arena=0, inputs=64, outputs=64)


@network_fault
class ForecastsLessForMore(Network):
    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        elements = sum(math.prod(shape) for shape in shapes)
        return MemoryForecast.of(weights=0, arena=max(0, (1 << 30) - 100 * elements), inputs=1 << 20, outputs=1 << 20)


@network_fault
class ForecastsWhatItInferredLast(Network):
    forecasts = 0

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        self.forecasts += 1
        return MemoryForecast.of(weights=0, arena=self.forecasts, inputs=1 << 20, outputs=1 << 20)


@network_fault
class ForecastsNegativeWeights(Network):
    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        return MemoryForecast.of(weights=-1, arena=0)
