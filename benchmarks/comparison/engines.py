"""The engines behind one interface; each is imported only in the process that runs it, with its best set-up."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
_PROFILED = 7


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings for an engine."""

    threads: int
    precision: str
    streams: int = 0
    """Inferences in flight; 0: one after the other, for the lowest latency."""
    device: str = "CPU"
    """The device of this engine; other engines run on the CPU."""
    effort: str = "quick"


class Engine(ABC):
    """One loaded model in one engine."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @property
    @abstractmethod
    def version(self) -> str:
        """The engine's version."""

    @property
    def location(self) -> str:
        """The folder of the engine's package, if it is this project's."""
        return ""

    @property
    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The settings used, for the report."""

    @abstractmethod
    def load(self, path: str) -> None:
        """Read an ONNX file and prepare it to run."""

    @abstractmethod
    def runner(self, inputs: Arrays) -> Callable[[], Any]:
        """A function that runs one inference, from arrays to this engine's result object."""

    def outputs(self, result: Any) -> list[np.ndarray]:
        """The arrays of a runner's result, in the order of the model's outputs."""
        return list(result)

    def export(self, path: str) -> None:
        """Write the compiled network."""
        raise NotImplementedError(f"{type(self).__name__} cannot write compiled networks")

    def import_network(self, path: str) -> None:
        """Load a compiled network instead of a model."""
        raise NotImplementedError(f"{type(self).__name__} cannot read compiled networks")

    def kinds(self, path: str, inputs: Arrays) -> dict[str, float]:
        """The milliseconds of an inference by type of operator; empty if the engine does not report them."""
        return {}

    def throughput(self, inputs: Arrays, seconds: float) -> float:
        """Inferences per second with `streams` of them in flight, each in its own thread."""
        return rate([self.runner(inputs) for _ in range(self.setup.streams)], seconds)


def rate(calls: list[Callable[[], object]], seconds: float) -> float:
    """Run every call in its own thread, repeatedly for `seconds`; return the sum of their rates."""
    rates = [0.0] * len(calls)
    ready = threading.Barrier(len(calls))
    clock = time.perf_counter

    def work(index: int) -> None:
        call, count = calls[index], 0
        call()
        ready.wait()
        begin = end = clock()
        while not count or end - begin < seconds:
            call()
            count += 1
            end = clock()
        rates[index] = count / (end - begin)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(calls))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)


class ThisEngine(Engine):
    """This project, through its public API."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from engine import Core

        self._core = Core()
        self._core.set_property({"CACHE_DIR": ""})  # loading a model includes compiling it
        wanted = {
            "INFERENCE_NUM_THREADS": setup.threads,
            "NUM_STREAMS": max(setup.streams, 1),
            "PERFORMANCE_HINT": "THROUGHPUT" if setup.streams else "LATENCY",
            "INFERENCE_PRECISION_HINT": setup.precision,
            "COMPILE_EFFORT": setup.effort,
        }
        declared = self._core.supported_properties(setup.device)
        self._config = {name: value for name, value in wanted.items() if name in declared}

    @property
    def version(self) -> str:
        import engine

        return engine.__version__

    @property
    def location(self) -> str:
        import engine

        return str(Path(engine.__file__).parent)

    @property
    def configuration(self) -> dict[str, Any]:
        return {"device": self.setup.device, **self._config}

    def load(self, path: str) -> None:
        self._network = self._core.compile_model(path, self.setup.device, self._config)

    def runner(self, inputs: Arrays) -> Callable[[], Any]:
        request, feed = self._network.create_infer_request(), dict(inputs)
        return lambda: request.infer(feed)

    def outputs(self, result: Any) -> list[np.ndarray]:
        return list(result.values())

    def kinds(self, path: str, inputs: Arrays) -> dict[str, float]:
        network = self._core.compile_model(path, self.setup.device, {**self._config, "PERF_COUNT": True})
        request, found = network.create_infer_request(), dict[tuple[str, str], list[int]]()
        for _ in range(_PROFILED):
            request.infer(dict(inputs))
            times: Counter[tuple[str, str]] = Counter()
            for node in request.profiling_info.nodes:  # a record for each step
                times[node.name, node.op_type] += node.duration_ns
            for key, time_ns in times.items():
                found.setdefault(key, []).append(time_ns)
        kinds: Counter[str] = Counter()
        for (_, op_type), each in found.items():
            kinds[op_type] += statistics.median(each) / 1e6
        return dict(kinds)

    def export(self, path: str) -> None:
        self._network.export_model(path)

    def import_network(self, path: str) -> None:
        self._network = self._core.import_model(path, self.setup.device, {"ENABLE_MMAP": True})


class OnnxRuntime(Engine):
    """onnxruntime: all graph optimisations, one session; streams are threads that share a single-threaded session."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        import onnxruntime

        if setup.precision != "f32":
            raise ValueError(f"onnxruntime computes float32 models in f32 only, not in {setup.precision}")
        self._module = onnxruntime
        onnxruntime.set_default_logger_severity(3)

    @property
    def version(self) -> str:
        return str(self._module.__version__)

    @property
    def configuration(self) -> dict[str, Any]:
        return {"intra_op_num_threads": self._threads, "graph_optimization_level": "ORT_ENABLE_ALL"}

    @property
    def _threads(self) -> int:
        return max(1, self.setup.threads // max(self.setup.streams, 1))

    def load(self, path: str) -> None:
        options = self._module.SessionOptions()
        options.graph_optimization_level = self._module.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        self._session = self._module.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def runner(self, inputs: Arrays) -> Callable[[], Any]:
        session, feed = self._session, dict(inputs)
        return lambda: session.run(None, feed)


class OpenVino(Engine):
    """openvino: latency or throughput hint, arrays shared with the request if possible."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        import openvino

        self._module = openvino
        self._core = openvino.Core()
        self._config: dict[str, Any] = {
            "PERFORMANCE_HINT": "THROUGHPUT" if setup.streams else "LATENCY",
            "INFERENCE_NUM_THREADS": setup.threads,
            "INFERENCE_PRECISION_HINT": setup.precision,
        }
        if setup.streams:
            self._config["NUM_STREAMS"] = setup.streams

    @property
    def version(self) -> str:
        return str(self._module.__version__)

    @property
    def configuration(self) -> dict[str, Any]:
        return dict(self._config)

    def load(self, path: str) -> None:
        self._network = self._core.compile_model(self._core.read_model(path), "CPU", self._config)

    def runner(self, inputs: Arrays) -> Callable[[], Any]:
        request, feed = self._network.create_infer_request(), dict(inputs)
        return lambda: request.infer(feed, share_inputs=True, share_outputs=True)

    def outputs(self, result: Any) -> list[np.ndarray]:
        return list(result.values())

    def export(self, path: str) -> None:
        with open(path, "wb") as file:
            file.write(self._network.export_model().getvalue())

    def import_network(self, path: str) -> None:
        with open(path, "rb") as file:
            self._network = self._core.import_model(file.read(), "CPU", self._config)


ENGINES: dict[str, type[Engine]] = {"engine": ThisEngine, "onnxruntime": OnnxRuntime, "openvino": OpenVino}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def latencies(call: Callable[[], object], seconds: float, warm_up: int, clock_name: str) -> list[float]:
    """Seconds of each inference that starts within `seconds`, at least three, after some untimed ones."""
    clock = CLOCKS[clock_name]
    for _ in range(warm_up):
        call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def process_memory() -> dict[str, float]:
    """Megabytes of this process: the peak, and its current private memory; None if the system does not report them."""
    fields: dict[str, float] = {}
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            key, _, rest = line.partition(":")
            if key in ("VmHWM", "RssAnon"):
                fields[{"VmHWM": "peak", "RssAnon": "own"}[key]] = int(rest.split()[0]) / 1024
    return fields
