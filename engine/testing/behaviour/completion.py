"""Checks of how background inferences end: each stage and callback once, early ends, errors, abandoned requests."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest

from engine.core import Core
from engine.errors import Cancelled, DeadlineExceeded, DeviceError, EngineError, InputError
from engine.plugin_api import (
    AsyncInferRequest,
    ExecutableNetwork,
    Executor,
    InlineExecutor,
    Pipeline,
    Stage,
    SyncInferRequest,
)
from engine.testing.behaviour.base import (
    DeviceChecks,
    are_freed,
    replaced_pipeline,
    stage_count,
    start_at_gate,
    start_beside,
)
from engine.testing.behaviour.long_models import LongModel, find_long_model

_TASKS = 200
_ATTEMPTS = 6


class CompletionChecks(DeviceChecks):
    """A background inference runs each stage once, calls its callback once, ends early if it must, and is freed."""

    area: ClassVar[str] = "asynchronous"

    def test_executors_run_each_task_once(self, network: ExecutableNetwork) -> None:
        """Every executor of the network; one with a single thread keeps the order of submission."""
        steps = network.pipeline(network.create_infer_request_impl())
        executors = {id(each): each for each in (*(step[0] for step in steps), network.callback_executor)}
        for executor in executors.values():
            self._check_executor(executor)

    def _check_executor(self, executor: Executor) -> None:
        ran, threads, lock = list[int](), set[int](), threading.Lock()

        def task(number: int) -> None:
            with lock:
                ran.append(number)
                threads.add(threading.get_ident())

        for number in range(_TASKS):
            executor.submit(partial(task, number))
        what = f"executor {executor.name}"
        self.eventually(lambda: len(ran) >= _TASKS, f"{what} runs each of {_TASKS} tasks")
        time.sleep(0.01)
        often = [number for number, count in Counter(ran).items() if count > 1]
        assert not often, f"{what} ran {len(often)} of {_TASKS} tasks more than once"
        if len(threads) == 1 and not isinstance(executor, InlineExecutor):
            assert ran == sorted(ran), f"{what} has one thread, and ran its tasks in another order"

    def test_every_stage_runs_once_and_in_order(self, network: ExecutableNetwork) -> None:
        """Four concurrent requests, several times each, and their callbacks."""
        ran: dict[int, list[str]] = {}

        def counted(request: SyncInferRequest, stage: Stage) -> Stage:
            def run() -> object:
                ran.setdefault(request.request_id, []).append(getattr(stage, "__name__", "stage"))
                return stage()

            return run

        with changed_pipeline(network, counted):
            requests = [network.create_infer_request() for _ in range(4)]
        steps = network.pipeline(network.create_infer_request_impl())
        expected = [getattr(stage, "__name__", "stage") for _, stage in steps]
        called: Counter[int] = Counter()
        for request in requests:
            request.set_callback(lambda done, error: called.update([done.request_id]))
        rounds = 5
        for shift in range(rounds):
            for seed, request in enumerate(requests):
                request.start_async(self.basic.sample(seed + shift).inputs)
            for seed, request in enumerate(requests):
                request.wait(self.limit)
                self.assert_outputs(request.results, self.basic.sample(seed + shift).outputs)
        for request in requests:
            stages = ran[request.request_id]
            assert stages == expected * rounds, f"{rounds} inferences ran the stages {stages}"
            assert called[request.request_id] == rounds, f"{rounds} inferences made {called[request.request_id]} calls"

    @pytest.mark.parametrize("outcome", ["success", "error", "cancelled", "late"])
    def test_callback_is_called_exactly_once(self, network: ExecutableNetwork, outcome: str) -> None:
        """After success, an error in a stage, a cancellation and a deadline; with the error that waiters get."""
        calls: list[EngineError | None] = []
        position, sample = stage_count(network) - 1, self.basic.sample(1)
        expected: type[EngineError] | None = None
        failing, request, gate = [outcome == "error"], None, None
        if outcome in ("success", "error"):
            with changed_pipeline(network, _failing(position, failing)):
                request = network.create_infer_request()
            request.set_callback(lambda done, error: calls.append(error))
            request.start_async(sample.inputs)
            expected = DeviceError if failing[0] else None
        else:
            request, gate = self.gated_request(network, position)
            request.set_callback(lambda done, error: calls.append(error))
            with gate:
                if outcome == "cancelled":
                    start_at_gate(request, gate, sample.inputs)
                    request.cancel()
                    expected = Cancelled
                else:
                    start_beside(request, sample.inputs, deadline=0.005)
                    self.eventually(lambda: request.starts > 0, "the inference starts")
                    self.eventually(lambda: request.state.name != "BUSY", "the deadline cancels the inference")
                    expected = DeadlineExceeded
        if expected is None:
            request.wait(self.limit)
        else:
            with pytest.raises(expected):
                request.wait(self.limit)
        assert [type(error) for error in calls] == [expected or type(None)], f"the callback was called with {calls}"
        failing[0] = False
        self.check_usable(request, self.basic.sample(2))
        assert len(calls) == 2, f"after two inferences, the callback was called {len(calls)} times"

    def test_request_is_usable_after_an_error_at_any_stage(self, network: ExecutableNetwork) -> None:
        """Before each stage, and after the last: the error is reported once, and the next inference is right."""
        for position in range(stage_count(network) + 1):
            failing = [True]
            with changed_pipeline(network, _failing(position, failing)):
                request = network.create_infer_request()
            for _ in range(2):
                failing[0] = True
                request.start_async(self.basic.sample(1).inputs)
                with pytest.raises(DeviceError, match="made to fail"):
                    request.wait(self.limit)
                with pytest.raises(DeviceError, match="made to fail"):
                    _ = request.results
                failing[0] = False
                self.check_usable(request, self.basic.sample(2))

    def test_request_is_usable_after_every_kind_of_error_in_turn(self, network: ExecutableNetwork) -> None:
        """Refused inputs, a failing stage, a cancellation, a deadline and a failing callback, one after the other."""
        failing = [False]
        with changed_pipeline(network, _failing(1, failing)), self.gated(network, 0) as gate:
            request = network.create_infer_request()
        other = network.create_infer_request()
        gate.open()
        samples = [self.basic.sample(seed) for seed in range(5)]
        for attempt in range(2):
            with pytest.raises(InputError):
                request.start_async({"a": samples[0].inputs["a"], "no input": 1})
            self.check_usable(request, samples[0])
            failing[0] = True
            request.start_async(samples[1].inputs)
            with pytest.raises(DeviceError):
                request.wait(self.limit)
            failing[0] = False
            self.check_usable(request, samples[1])
            request.start_async(samples[2].inputs)
            request.cancel()
            self._wait_for_any_end(request)
            self.check_usable(request, samples[2])
            request.start_async(samples[3].inputs, deadline=1e-6)
            self._wait_for_any_end(request)
            self.check_usable(request, samples[3])
            request.set_callback(lambda done, error: 1 / 0)
            request.start_async(samples[4].inputs)
            self._wait_for_any_end(request)
            request.set_callback(None)
            self.check_usable(request, samples[4])
            self.check_usable(other, samples[attempt])

    @pytest.mark.parametrize("reason", ["cancelled", "late"])
    def test_an_inference_that_must_end_ends_before_it_is_done(self, core: Core, reason: str) -> None:
        """A chain of long operators stops between two of them, not after the last; the request can be used again."""
        long = self._long_model(core)
        network, entered = self.compile(core, long.model, PERF_COUNT=True), threading.Event()
        with changed_pipeline(network, partial(_noticed, entered)):
            request = network.create_infer_request()
        self.assert_value(request.infer(long.inputs)["y"], long.answer, "y")
        nodes = len(request.profiling_info.nodes)
        late = ""
        for _ in range(_ATTEMPTS):  # the machine may be busy
            begin = time.perf_counter()
            request.infer(long.inputs)
            whole = time.perf_counter() - begin
            entered.clear()
            if not self._end_early(request, long, reason, whole / 4, entered):
                continue
            ran = len(request.profiling_info.nodes)
            self.assert_value(request.infer(long.inputs)["y"], long.answer, "y")
            if ran < nodes:  # a device need not record the nodes of an inference that did not complete
                return
            late = f"after {whole / 4:.3f} s, and ran {ran} of {nodes} nodes"
        if not late:
            pytest.skip(f"an inference of {whole:.3f} s was done before it could be ended")
        pytest.fail(f"an inference of {whole:.3f} s was {reason} {late}")

    def _end_early(
        self, request: AsyncInferRequest, long: LongModel, reason: str, after: float, entered: threading.Event
    ) -> bool:
        """Start, and cancel or be late after `after` seconds; return whether that ended an inference that ran."""
        began = request.starts
        start_beside(request, long.inputs, **({"deadline": after} if reason == "late" else {}))
        self.eventually(lambda: request.starts > began, "the inference starts")
        if reason == "cancelled":
            assert entered.wait(self.limit), "timed out: the inference does not run"
            time.sleep(after)
            request.cancel()
        try:
            request.wait(self.limit)
        except (Cancelled, DeadlineExceeded) as e:
            if "keeps running" in str(e):
                pytest.fail(f"the inference does not end: {e}")
            assert isinstance(e, Cancelled if reason == "cancelled" else DeadlineExceeded)  # noqa: PT017
            return entered.is_set()
        return False

    def test_requests_that_are_dropped_in_flight_complete(self, core: Core) -> None:
        """Inferences complete and call back once even if nothing else refers to their requests; all is freed."""
        network = self.compile(core, self.basic.model())
        calls: Counter[int] = Counter()
        errors: list[EngineError] = []

        def count(request: AsyncInferRequest, error: EngineError | None) -> None:
            calls[request.request_id] += 1
            if error is not None:
                errors.append(error)

        dropped: list[weakref.ref[Any]] = []
        for seed in range(12):
            request = network.create_infer_request()
            request.set_callback(count)
            request.start_async(self.basic.sample(seed).inputs)
            dropped.append(weakref.ref(request))
            del request
        self.eventually(lambda: len(calls) >= len(dropped), f"{len(dropped)} inferences call back")
        self.eventually(lambda: are_freed(dropped), "the dropped requests are freed")
        assert not errors
        assert set(calls.values()) == {1}, f"calls by request: {dict(calls)}"
        sample = self.basic.sample()
        self.assert_outputs(network(sample.inputs), sample.outputs)

    @pytest.mark.parametrize("use", ["created", "inferred", "started", "failed", "cancelled"])
    def test_requests_are_freed(self, network: ExecutableNetwork, use: str) -> None:
        """A request that is dropped after use is freed, and its network keeps nothing of it."""
        impls: list[weakref.ref[Any]] = []

        def watched(request: SyncInferRequest, stage: Stage) -> Stage:
            if not any(reference() is request for reference in impls):
                impls.append(weakref.ref(request))
            return stage

        failing, sample = [use == "failed"], self.basic.sample()
        with changed_pipeline(network, watched), changed_pipeline(network, _failing(1, failing)):
            request = network.create_infer_request()
        if use == "inferred":
            request.infer(sample.inputs)
        elif use != "created":
            request.start_async(sample.inputs)
            if use == "cancelled":
                request.cancel()
            self._wait_for_any_end(request)
        dropped = [weakref.ref(request), *impls]
        del request
        gc.collect()
        self.eventually(lambda: are_freed(dropped), f"a request that was {use} is freed")
        self.assert_outputs(network(sample.inputs), sample.outputs)

    def _wait_for_any_end(self, request: AsyncInferRequest) -> None:
        """Wait; the inference may have succeeded before it could be ended."""
        try:
            request.wait(self.limit)
        except EngineError as e:
            if "keeps running" in str(e):
                pytest.fail(f"the inference does not end: {e}")

    def _long_model(self, core: Core) -> LongModel:
        found = find_long_model(lambda model: core.query_model(model, self.device, dict(self.config)).is_supported)
        if found is None:
            pytest.skip(f"{self.device} supports neither MatMul nor Conv, from which a long chain is made")
        return found


def _noticed(entered: threading.Event, request: SyncInferRequest, stage: Stage) -> Stage:
    """A stage that also sets the event, unless it is a stage of the host."""
    if stage in (request.infer_preprocess, request.infer_postprocess):
        return stage

    def run() -> object:
        entered.set()
        return stage()

    return run


@contextmanager
def changed_pipeline(network: ExecutableNetwork, change: Callable[[SyncInferRequest, Stage], Stage]) -> Iterator[None]:
    """Replace each stage of requests that are created in this context; those after the change count as own stages."""
    former = network.pipeline

    def with_change(request: SyncInferRequest) -> Pipeline:
        return [(executor, change(request, stage)) for executor, stage in former(request)]

    with replaced_pipeline(network, with_change):
        yield


def _failing(position: int, failing: list[bool]) -> Callable[[SyncInferRequest, Stage], Stage]:
    """Make the stage at `position` fail, or the last one after it has run if there is no such stage, while `failing[0]`
    is true.
    """
    number = [-1]

    def change(request: SyncInferRequest, stage: Stage) -> Stage:
        number[0] += 1
        mine = number[0]

        def run() -> None:
            if failing[0] and mine == position:
                raise RuntimeError("made to fail")
            stage()
            if failing[0] and mine == position - 1 and is_last(mine):
                raise RuntimeError("made to fail")

        return run

    def is_last(mine: int) -> bool:
        return mine == number[0]

    return change
