"""Checks of memory: arrays are released, and neither compilations nor inferences make the process grow."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest

from engine.core import Core
from engine.errors import UnsupportedError
from engine.plugin_api import ExecutableNetwork, MemoryForecast
from engine.testing.behaviour.base import DeviceChecks, are_freed, is_freed
from engine.testing.behaviour.cases import Sample

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")
_FILES: Final = Path("/proc/self/fd")
_RESIDENT_NOISE: Final = 6 << 20
"""How many bytes a process without a leak may grow at times: arenas of the allocator, caches of libraries."""
_TRACED_NOISE: Final = 12 << 10
"""The same for what Python allocates, which is known to the byte."""
_BYTES_PER_STEP: Final = 16
_ATTEMPTS: Final = 3
_LONGER: Final = 64


class MemoryChecks(DeviceChecks):
    """Neither arrays nor networks nor requests stay in memory.

    Attributes:
        COMPILATIONS, INFERENCES: how many of each a full run makes.
        memory_share: the share of them that is run; 1.0 is a full run. In a short run, a leak has to be larger to be
            found: one of Python objects or arrays from about 1 KB a compilation and 115 bytes an inference, one of
            native memory from about 0.5 MB and 50 KB. In a full run these are 65 and 21 bytes, 25 KB and 2.5 KB.
    """

    area: ClassVar[str] = "memory"
    COMPILATIONS: ClassVar[int] = 1000
    INFERENCES: ClassVar[int] = 10_000
    memory_share: ClassVar[float] = 0.05

    def test_inputs_are_released(self, network: ExecutableNetwork) -> None:
        """After a call of a network; after a request got others, or its tensors were cleared."""
        sample = self.basic.sample()
        request = network.create_infer_request()
        for what in ("a call of the network", "clear_tensors", "an inference with other inputs"):
            arrays = {name: value.copy() for name, value in sample.inputs.items()}
            watched = [weakref.ref(value) for value in arrays.values()]
            if what == "a call of the network":
                network(arrays)
            else:
                request.infer(arrays)
                request.start_async(arrays)
                request.wait(self.limit)
            del arrays
            if what == "clear_tensors":
                request.clear_tensors()
            elif what == "an inference with other inputs":
                request.infer(sample.inputs)
            self.eventually(lambda watched=watched: are_freed(watched), f"the inputs are freed after {what}")  # type: ignore[misc]

    def test_results_are_released(self, network: ExecutableNetwork) -> None:
        """A result lives as long as something of the application refers to it, and the request to its last one."""
        sample = self.basic.sample()
        request = network.create_infer_request()
        for what in ("a call of the network", "clear_tensors", "the next inference"):
            result = network(sample.inputs) if what == "a call of the network" else request.infer(sample.inputs)
            watched = [weakref.ref(value) for value in result.values()]
            del result
            if what == "clear_tensors":
                request.clear_tensors()
            elif what == "the next inference":
                request.infer(sample.inputs)
            self.eventually(lambda watched=watched: are_freed(watched), f"the results are freed after {what}")  # type: ignore[misc]

    def test_output_tensors_are_released(self, network: ExecutableNetwork) -> None:
        """An array that was set for an output and unset again, once the next inference has run."""
        sample = self.basic.sample()
        request = network.create_infer_request()
        out = np.empty(self.basic.shape, np.float32)
        watched = weakref.ref(out)
        request.set_tensor("total", out)
        assert request.infer(sample.inputs)["total"] is out
        request.set_output_tensor("total", None)
        del out
        request.infer(sample.inputs)
        self.eventually(lambda: is_freed(watched), "the array that was set for an output is freed")

    def test_core_is_freed(self) -> None:
        """A core is freed with its plugins when the application has dropped it and all networks."""
        core = self.make_core()
        network = self.compile(core, self.basic.model())
        self.check_usable(network.create_infer_request(), self.basic.sample())
        watched = weakref.ref(core), weakref.ref(network.plugin)
        del core, network
        self.eventually(lambda: is_freed(watched[0]), "the core is freed")
        self.eventually(lambda: is_freed(watched[1]), "the plugin is freed with its core")

    def test_compilations_do_not_grow(self, core: Core) -> None:
        """Many compilations of one model, each with an inference; the networks are dropped."""
        model, sample = core.read_model(self.basic.model()), self.basic.sample()

        def compile_and_run() -> None:
            core.compile_model(model, self.device, dict(self.config))(sample.inputs)

        self._check_growth(compile_and_run, self.COMPILATIONS, "compilation")

    def test_inferences_do_not_grow(self, core: Core) -> None:
        """Many inferences of one network: calls, synchronous and asynchronous requests, with profiles."""
        network, sample = self.compile(core, self.basic.model(), PERF_COUNT=True), self.basic.sample()
        request = network.create_infer_request()
        turn = 0

        def infer() -> None:
            nonlocal turn
            turn += 1
            if turn % 3 == 0:
                network(sample.inputs)
            elif turn % 3 == 1:
                request.infer(sample.inputs)
            else:
                request.start_async(sample.inputs)
                request.wait(self.limit)

        self._check_growth(infer, self.INFERENCES, "inference")

    def test_requests_do_not_grow(self, network: ExecutableNetwork) -> None:
        """Many requests, each created, used once and dropped."""
        sample = self.basic.sample()

        def make_and_run() -> None:
            request = network.create_infer_request()
            request.start_async(sample.inputs)
            request.wait(self.limit)

        self._check_growth(make_and_run, self.COMPILATIONS, "request")

    def test_inferences_are_right_after_memory_was_released(self, network: ExecutableNetwork) -> None:
        """`memory_statistics` returns bytes, and `release_memory` releases only memory that later inferences allocate
        again.
        """
        sample = self.basic.sample()
        request = network.create_infer_request()
        results = request.infer(sample.inputs)
        for _ in range(2):
            network.memory_statistics()
            network.release_memory()
            self.assert_outputs(results, sample.outputs)
            self.assert_outputs(request.infer(sample.inputs), sample.outputs)
            self.assert_outputs(network(sample.inputs), sample.outputs)

    def test_memory_is_forecast(self, core: Core) -> None:
        """`memory_forecast` has at least the inputs and outputs, is the same each time, and does not fall if the first
        dimension grows; a device that raises `UnsupportedError` is skipped.
        """
        model, sample = self.basic.model(), self.basic.sample()
        network = self.compile(core, model)
        try:
            forecast = network.memory_forecast()
        except UnsupportedError as e:
            pytest.skip(str(e))
        assert network.memory_forecast() == forecast, "two forecasts of one network differ"
        self._check_ports(forecast, sample)
        least = forecast.weights - forecast.mapped + forecast.arena + forecast.inputs + forecast.outputs
        assert forecast.peak >= least, f"the peak of {forecast} is less than its parts"
        self.assert_outputs(network(sample.inputs), sample.outputs)
        assert network.memory_forecast() == forecast, "an inference changes the forecast of a network of known shapes"
        for port in (*model.graph.input, *model.graph.output):
            port.type.tensor_type.shape.dim[0].dim_value *= _LONGER
        self.require_support(core, model)  # as for a Reshape to a shape that is part of the model
        longer = self.compile(core, model).memory_forecast()
        self._check_ports(longer, sample, _LONGER)
        for name in ("inputs", "outputs", "peak"):
            less, more = getattr(forecast, name), getattr(longer, name)
            assert more >= less, f"for a first dimension {_LONGER} times as long, {name} falls from {less} to {more}"

    def _check_ports(self, forecast: MemoryForecast, sample: Sample, times: int = 1) -> None:
        for what, found, values in (
            ("inputs", forecast.inputs, sample.inputs),
            ("outputs", forecast.outputs, sample.outputs),
        ):
            least = times * sum(value.nbytes for value in values.values())
            assert found >= least, f"the {what} take {least} bytes, and the forecast has {found}"

    def _check_growth(self, step: Callable[[], None], full: int, what: str) -> None:
        """Fail if the second half of the steps makes the process grow, in Python's memory, resident, files, threads."""
        count = max(16, int(full * self.memory_share))
        half, quarter = count // 2, count // 4
        last = count - half - quarter
        with _tracing():
            for _ in range(half):
                step()
            former, files, threads = _traced(), _open_files(), threading.active_count()
            for _ in range(quarter):
                step()
            # The first quarter of what is measured may still fill caches, which are bounded.
            resident = _resident()
            for attempt in range(_ATTEMPTS):
                middle = _traced()
                for _ in range(last):
                    step()

                def growth(middle: int = middle, former: int = former) -> int:
                    now = _traced()
                    return round((min(now - middle, (now - former) / 2) - _TRACED_NOISE) / last)

                if self._is_soon(lambda: growth() <= _BYTES_PER_STEP):
                    break
                # A table that doubles grows once; a leak grows each time.
                former = middle
                if attempt < _ATTEMPTS - 1:
                    continue
                pytest.fail(
                    f"Python's memory grows by {growth()} bytes or more each {what} (the last {last} of {count})"
                )
        if not self._is_soon(lambda: _resident() - resident <= _RESIDENT_NOISE):
            grown = (_resident() - resident) / 2**20
            pytest.fail(f"the process grew by {grown:.1f} MiB in the last {last} of {count} {what}s")
        self.eventually(lambda: threading.active_count() <= threads, f"{what}s leave no threads")
        assert _open_files() <= files, f"{_open_files() - files} files stayed open after {half} {what}s"

    def _is_soon(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition becomes true: threads that end release their memory a little later."""
        end = time.monotonic() + min(self.limit, 10 * self.patience)
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


@contextmanager
def _tracing() -> Any:
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        yield
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _resident() -> int:
    """The resident memory in bytes; 0 where the system does not report it."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def _open_files() -> int:
    """The number of open files; 0 where the system does not report it."""
    try:
        return len(os.listdir(_FILES))
    except OSError:
        return 0
