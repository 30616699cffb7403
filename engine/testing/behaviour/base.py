"""Shared by all groups of checks: the device under test, compiling or skipping, comparing, holding a request."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final

import numpy as np
import onnx
import pytest

from engine.core import Core
from engine.ir import Model
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork, Pipeline, SupportLevel, SyncInferRequest
from engine.runtime import AsyncInferQueue
from engine.testing.behaviour.basic import BASIC, FURTHER_OPERATORS, OPERATORS, BasicModel, find_basic
from engine.testing.behaviour.cases import Case, Sample, Values
from engine.testing.conformance.selection import LIMIT

_found: Final[dict[tuple[str, str], BasicModel | None]] = {}
"""The basic models by device string and configuration."""

THREADS: Final = 8
"""How many threads use one object concurrently."""


class DeviceChecks:
    """The device under test, and how checks compile for it.

    Attributes:
        device: the device string, such as "EXAMPLE", "EXAMPLE.1" or "HETERO:EXAMPLE,TEMPLATE".
        config: the configuration that checks compile with; keys set by a check take precedence.
        rtol, atol: the largest relative and absolute error of a floating-point result.
        area: what the checks of a group are about, under which a report counts them.
        limit: seconds after which a waiting check fails instead of hanging; far above the time of a correct device.
        patience: seconds that a check waits for an event that must not happen.
    """

    area: ClassVar[str]
    device: ClassVar[str]
    config: ClassVar[Mapping[str, object]] = {}
    rtol: ClassVar[float] = 1e-5
    atol: ClassVar[float] = 1e-6
    limit: ClassVar[float] = LIMIT
    patience: ClassVar[float] = 0.2

    @pytest.fixture
    def core(self) -> Core:
        """A new core for each check."""
        return self.make_core()

    def make_core(self) -> Core:
        """A new core. Override it for a device that is registered instead of installed."""
        return Core()

    @pytest.fixture
    def network(self, core: Core) -> ExecutableNetwork:
        """The basic model, compiled for the device with its defaults."""
        return self.compile(core, self.basic.model())

    @property
    def basic(self) -> BasicModel:
        """The basic model of the device; without one the check is skipped, and `test_basic_model_runs` fails."""
        found = self.find_basic()
        if found is None:
            pytest.skip(self.why_not_basic())
        return found

    def find_basic(self) -> BasicModel | None:
        """The basic model of the device; None if it supports no operator that can make one."""
        key = self.device, repr(dict(self.config))
        if key not in _found:
            core = self.make_core()
            _found[key] = find_basic(lambda model: core.query_model(model, self.device, dict(self.config)).is_supported)
        return _found[key]

    def why_not_basic(self) -> str:
        """Why the device has no basic model."""
        answer = self.make_core().query_model(BASIC.model(), self.device, dict(self.config))
        reason = next(iter(answer.at(SupportLevel.REFUSED).values())).reason
        names = ", ".join(dict.fromkeys(operator.op_type for operator in (*OPERATORS, *FURTHER_OPERATORS)))
        return f"{self.device} cannot run the basic model: it supports float32 in none of {names}; Add: {reason}"

    def compile(self, core: Core, model: onnx.ModelProto, **config: object) -> ExecutableNetwork:
        """Compile; a device that refuses the model fails the check."""
        return core.compile_model(model, self.device, {**self.config, **config})

    def compile_or_skip(self, core: Core, case: Case, **config: object) -> ExecutableNetwork:
        """Compile a case, or skip the check with the device's reason if its query refuses a node."""
        self.require_support(core, case.model)
        return self.compile(core, case.model, **config)

    def require_support(
        self, core: Core, model: onnx.ModelProto | Model, levels: Sequence[SupportLevel] = (SupportLevel.REFUSED,)
    ) -> None:
        """Skip the check if the device answers one of these levels for a node.

        The message begins with the node's operator; reports group by it what did not apply.
        """
        answer = core.query_model(model, self.device, dict(self.config))
        for name, support in answer.nodes.items():
            if support.level in levels:
                read = model if isinstance(model, Model) else core.read_model(model)
                op_type = next((node.op_type for node in read.ordered_nodes() if node.friendly_name == name), name)
                pytest.skip(f"{op_type}: {support.level.value} on {self.device}: {support.reason}")

    def require_export(self, core: Core) -> None:
        """Skip the check if the device does not declare that it exports networks."""
        if not core.get_property(self.device, "IMPORT_EXPORT_SUPPORT"):
            pytest.skip(f"{self.device} declares IMPORT_EXPORT_SUPPORT = False")

    @property
    def plugin_name(self) -> str:
        """The plugin's name, the first part of the device string: "HETERO" of "HETERO:CPU"."""
        return self.device.partition(":")[0].partition(".")[0]

    def with_id(self, device_id: str) -> str:
        """The device string with this device id, or without an id."""
        _, colon, targets = self.device.partition(":")
        return f"{self.plugin_name}{'.' if device_id else ''}{device_id}{colon}{targets}"

    def assert_outputs(self, result: Mapping[str, Any], expected: Values) -> None:
        """Fail unless the outputs are these, in this order, with these element types, shapes and values."""
        assert list(result) == list(expected)
        for name, value in expected.items():
            self.assert_value(result[name], value, f"output `{name}`")

    def assert_value(self, actual: Any, expected: Any, where: str) -> None:
        """Fail unless one value, or each of a sequence, is as expected."""
        if isinstance(expected, list):
            assert isinstance(actual, list), f"{where} is a {type(actual).__name__}, expected a list"
            assert len(actual) == len(expected), f"{where} has {len(actual)} elements, expected {len(expected)}"
            for position, (left, right) in enumerate(zip(actual, expected, strict=True)):
                self.assert_value(left, right, f"{where}[{position}]")
            return
        assert isinstance(actual, np.ndarray), f"{where} is a {type(actual).__name__}, expected an array"
        assert actual.dtype == expected.dtype, f"{where} is {actual.dtype}, expected {expected.dtype}"
        assert actual.shape == expected.shape, f"{where} has shape {actual.shape}, expected {expected.shape}"
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(actual, expected, err_msg=where)
            return
        epsilon = 4 * float(np.finfo(expected.dtype).eps)
        rtol = max(self.rtol, epsilon) if expected.dtype.itemsize < 8 else epsilon
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=self.atol, err_msg=where)

    def check_basic(self, core: Core) -> None:
        """Fail unless the basic model compiles and gives right results."""
        sample = self.basic.sample()
        self.assert_outputs(self.compile(core, self.basic.model())(sample.inputs), sample.outputs)

    def check_usable(self, request: AsyncInferRequest, sample: Sample) -> None:
        """Fail unless the request gives right results, both synchronously and asynchronously."""
        self.assert_outputs(request.infer(sample.inputs), sample.outputs)
        request.start_async(sample.inputs)
        request.wait(self.limit)
        self.assert_outputs(request.results, sample.outputs)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        """Fail unless the condition becomes true within the limit."""
        eventually(condition, what, self.limit)

    def in_threads(self, work: Callable[[int], object]) -> None:
        """Call `work` with 0 to 7 concurrently; raise the first error. Each thread has to end within the limit."""
        in_threads(work, self.limit)

    def gated(self, network: ExecutableNetwork, position: int) -> AbstractContextManager[Gate]:
        """`gated`, with the limit of this class."""
        return gated(network, position, self.limit)

    def gated_request(self, network: ExecutableNetwork, position: int = 0) -> tuple[AsyncInferRequest, Gate]:
        """Return a new request with a gate before the stage at `position`."""
        with self.gated(network, position) as gate:
            return network.create_infer_request(), gate


class Gate:
    """A stage that stops each request that reaches it until the gate is opened or the `with` block ends."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._reached = threading.Semaphore(0)
        self._opened = threading.Event()

    def stage(self) -> None:
        """Wait until the gate is opened. Runs as a stage of a request's pipeline."""
        self._reached.release()
        if not self._opened.wait(self._limit):
            raise TimeoutError("timed out: the gate was not opened")

    def wait_until_reached(self) -> None:
        """Return when one more request has reached the gate."""
        assert self.is_reached(self._limit), "timed out: the request did not reach the gate"

    def is_reached(self, timeout: float) -> bool:
        """Whether one more request reaches the gate within `timeout` seconds."""
        return self._reached.acquire(timeout=timeout)

    def open(self) -> None:
        """Let all current and later requests continue."""
        self._opened.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


@contextmanager
def gated(network: ExecutableNetwork, position: int, limit: float = LIMIT) -> Iterator[Gate]:
    """Add a gate before the stage at `position` (or after the last) to requests created in this context.

    It runs on the executor of the adjacent stage, so that requests change executors as they would without it.
    """
    gate, pipeline = Gate(limit), network.pipeline

    def with_gate(request: SyncInferRequest) -> Pipeline:
        steps = list(pipeline(request))
        executor = steps[min(position, len(steps) - 1)][0]
        return [*steps[:position], (executor, gate.stage), *steps[position:]]

    with replaced_pipeline(network, with_gate):
        yield gate


@contextmanager
def replaced_pipeline(network: ExecutableNetwork, pipeline: Callable[[SyncInferRequest], Pipeline]) -> Iterator[None]:
    """Give this pipeline to requests that are created in this context."""
    former = vars(network).get("pipeline")
    vars(network)["pipeline"] = pipeline
    try:
        yield
    finally:
        if former is None:
            del vars(network)["pipeline"]
        else:
            vars(network)["pipeline"] = former


def stage_count(network: ExecutableNetwork) -> int:
    """The number of stages in the pipeline of the network's requests."""
    return len(network.pipeline(network.create_infer_request_impl()))


def start_at_gate(request: AsyncInferRequest | AsyncInferQueue, gate: Gate, inputs: object) -> None:
    """Start a request and return when it has reached the gate."""
    start_beside(request, inputs)
    gate.wait_until_reached()


def start_beside(request: AsyncInferRequest | AsyncInferQueue, inputs: object, **limits: float) -> None:
    """Start a request on another thread, since a device may run its stages in the thread that starts it."""
    threading.Thread(target=request.start_async, args=(inputs,), kwargs=limits, daemon=True).start()


def eventually(condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """Fail unless the condition becomes true within `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"timed out waiting: {what}"
        time.sleep(0.001)


def in_threads(work: Callable[[int], object], limit: float = LIMIT) -> None:
    """Call `work` with 0 to 7 concurrently, each on its own thread; raise the first error."""
    start, errors = threading.Barrier(THREADS), list[BaseException]()

    def guarded(number: int) -> None:
        try:
            start.wait(limit)
            work(number)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), "a thread did not end in time"
    if errors:
        raise errors[0]


def is_freed(reference: weakref.ref[Any]) -> bool:
    """Whether the referent of the weak reference is freed after a garbage collection."""
    gc.collect()
    return reference() is None


def are_freed(references: Iterable[weakref.ref[Any]]) -> bool:
    """Whether the referents of all weak references are freed after a garbage collection."""
    gc.collect()
    return all(reference() is None for reference in references)


def run_python(script: str, *arguments: str, **variables: str) -> str:
    """Run a script in another process with the same import path; return its standard output.

    `variables` are added to its environment.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT * 2,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"the subprocess exited with code {done.returncode}: {done.stderr}"
    return done.stdout
