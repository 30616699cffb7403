"""Checks of asynchronous inferences: waiting, callbacks, awaiting, cancelling, deadlines, object lifetime."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest

from engine.core import Core
from engine.errors import Busy, CallbackError, Cancelled, DeadlineExceeded, EngineError, InferError
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.runtime import RequestState
from engine.testing.behaviour.base import (
    DeviceChecks,
    is_freed,
    stage_count,
    start_at_gate,
    start_beside,
)
from engine.testing.behaviour.cases import counting_case


class AsyncChecks(DeviceChecks):
    """An asynchronous request ends with the right result or the right error, and can then be used again."""

    area: ClassVar[str] = "asynchronous"

    def test_start_and_wait(self, network: ExecutableNetwork) -> None:
        """The same request is started repeatedly; waiting twice has no effect."""
        request = network.create_infer_request()
        for seed in range(5):
            sample = self.basic.sample(seed)
            request.start_async(sample.inputs)
            request.wait(self.limit)
            request.wait()
            assert request.state is RequestState.IDLE
            assert request.error is None
            self.assert_outputs(request.results, sample.outputs)
            assert request.get_tensor("total") is request.results["total"]

    def test_await(self, network: ExecutableNetwork) -> None:
        """Several requests are awaited in one event loop."""
        requests = [network.create_infer_request() for _ in range(4)]
        samples = [self.basic.sample(seed) for seed in range(4)]

        async def all_of_them() -> list[Any]:
            for request, sample in zip(requests, samples, strict=True):
                request.start_async(sample.inputs)
            return [await request for request in requests]

        for result, sample in zip(asyncio.run(all_of_them()), samples, strict=True):
            self.assert_outputs(result, sample.outputs)

    def test_cancelling_the_task_that_awaits_cancels_the_inference(self, network: ExecutableNetwork) -> None:
        """The device stops the inference of a cancelled task."""
        request, gate = self.gated_request(network)

        async def give_up() -> None:
            await asyncio.wait_for(_result(request), 0.01)

        with gate:
            start_at_gate(request, gate, self.basic.sample(1).inputs)
            with pytest.raises(TimeoutError):
                asyncio.run(give_up())
            assert request.state is RequestState.CANCELLED
        self._check_ended(request, Cancelled)

    def test_callback(self, network: ExecutableNetwork) -> None:
        """The callback gets the idle request with results; waiters continue after it returns."""
        request, seen = network.create_infer_request(), []
        request.set_callback(lambda done, error: seen.append((done, error, dict(done.results))))
        for seed in range(3):
            sample = self.basic.sample(seed)
            request.start_async(sample.inputs)
            request.wait(self.limit)
            done, error, results = seen[seed]
            assert done is request
            assert error is None
            self.assert_outputs(request.results, results)
            self.assert_outputs(request.results, sample.outputs)
        request.set_callback(None)
        self.check_usable(request, self.basic.sample())
        assert len(seen) == 3

    def test_callback_that_starts_the_next_inference(self, network: ExecutableNetwork) -> None:
        """A loop of inferences without an application thread."""
        request, finished = network.create_infer_request(), threading.Event()
        seeds, seen = iter(range(1, 6)), [dict[str, Any]()]

        def again(done: AsyncInferRequest, error: EngineError | None) -> None:
            if error is not None:
                finished.set()
                return
            seen.append(dict(done.results))
            seed = next(seeds, None)
            if seed is None:
                finished.set()
            else:
                done.start_async(self.basic.sample(seed).inputs)

        request.set_callback(again)
        request.start_async(self.basic.sample(0).inputs)
        assert finished.wait(self.limit), "timed out: the callbacks did not go on"
        request.wait(self.limit)
        assert len(seen) == 1 + 6
        for seed, results in enumerate(seen[1:]):
            for name, value in self.basic.sample(seed).outputs.items():
                self.assert_value(results[name], value, name)

    def test_exception_in_a_callback_reaches_the_waiter_once(self, network: ExecutableNetwork) -> None:
        """The results are available; this request and others remain usable."""
        request, other, sample = network.create_infer_request(), network.create_infer_request(), self.basic.sample()
        request.set_callback(lambda done, error: done.results["no such output"])
        request.start_async(sample.inputs)
        with pytest.raises(CallbackError) as caught:
            request.wait(self.limit)
        assert isinstance(caught.value.__cause__, KeyError)
        request.wait(self.limit)
        self.assert_outputs(request.results, sample.outputs)
        self.check_usable(other, sample)
        request.set_callback(None)
        self.check_usable(request, sample)

    def test_a_running_request_is_busy(self, network: ExecutableNetwork) -> None:
        """Operations that would disturb the inference are refused, and do not disturb it."""
        sample, other = self.basic.sample(1), self.basic.sample(2)
        request, gate = self.gated_request(network)
        with gate:
            start_at_gate(request, gate, sample.inputs)
            assert request.state is RequestState.BUSY
            attempts = (
                lambda: request.start_async(other.inputs),
                lambda: request.infer(other.inputs),
                lambda: request.set_tensor("a", other.inputs["a"]),
                lambda: request.get_tensor("total"),
                lambda: request.set_callback(None),
                lambda: request.results,
                lambda: request.profiling_info,
            )
            for attempt in attempts:
                with pytest.raises(Busy):
                    attempt()
        request.wait(self.limit)
        self.assert_outputs(request.results, sample.outputs)
        self.check_usable(request, other)

    def test_wait_that_times_out(self, network: ExecutableNetwork) -> None:
        """The inference continues and can be waited for again; a timeout of 0 only polls."""
        sample = self.basic.sample()
        request, gate = self.gated_request(network, stage_count(network))
        with gate:
            start_at_gate(request, gate, sample.inputs)
            for timeout in (0, 0.01):
                with pytest.raises(DeadlineExceeded, match="it keeps running"):
                    request.wait(timeout)
            assert request.state is RequestState.BUSY
        request.wait(self.limit)
        self.assert_outputs(request.results, sample.outputs)

    def test_cancel_between_any_two_stages(self, network: ExecutableNetwork) -> None:
        """The inference ends with `Cancelled`, has no results, and the device releases it."""
        for position in range(stage_count(network) + 1):
            request, gate = self.gated_request(network, position)
            with gate:
                start_at_gate(request, gate, self.basic.sample(1).inputs)
                request.cancel()
                request.cancel()
                assert request.state is RequestState.CANCELLED
            self._check_ended(request, Cancelled)

    def test_deadline_between_any_two_stages(self, network: ExecutableNetwork) -> None:
        """The inference ends with `DeadlineExceeded`, even if nothing waits for it."""
        for position in range(stage_count(network) + 1):
            request, gate = self.gated_request(network, position)
            with gate:
                start_beside(request, self.basic.sample(1).inputs, deadline=0.005)
                self.eventually(lambda: _is_late(request), "the deadline cancels the inference")  # noqa: B023
            self._check_ended(request, DeadlineExceeded)

    def test_a_loop_that_goes_on_and_on_can_be_ended(self, core: Core) -> None:
        """By cancelling and by a deadline: a model with an endless loop must not block the device."""
        case = counting_case()
        request = self.compile_or_skip(core, case).create_infer_request()
        endless = {"trips": np.array(2**62)}
        start_beside(request, endless)
        self.eventually(lambda: request.starts > 0, "the inference starts")
        with pytest.raises(DeadlineExceeded, match="it keeps running"):
            request.wait(0.02)
        request.cancel()
        with pytest.raises(Cancelled):
            request.wait(self.limit)
        start_beside(request, endless, deadline=0.02)
        self.eventually(lambda: request.starts > 1, "the inference starts")
        with pytest.raises(DeadlineExceeded, match="deadline"):
            request.wait(self.limit)
        self.check_usable(request, case.samples[0])

    def _check_ended(self, request: AsyncInferRequest, error: type[EngineError]) -> None:
        for _ in range(2):
            with pytest.raises(error):
                request.wait(self.limit)
        with pytest.raises(error):
            _ = request.results
        assert isinstance(request.error, error)
        with pytest.raises(InferError, match="no value"):
            request.get_output_tensor("total")
        self.check_usable(request, self.basic.sample(2))

    def test_deadline_that_is_kept(self, network: ExecutableNetwork) -> None:
        """The deadline affects neither this inference nor later ones; an invalid deadline is refused."""
        request = network.create_infer_request()
        for seed in range(3):
            sample = self.basic.sample(seed)
            request.start_async(sample.inputs, deadline=self.limit)
            request.wait(self.limit)
            self.assert_outputs(request.results, sample.outputs)
        for deadline in (0, -1, float("nan"), "soon"):
            with pytest.raises(InferError, match="deadline"):
                request.start_async(self.basic.sample().inputs, deadline=deadline)  # type: ignore[arg-type]
        self.check_usable(request, self.basic.sample())

    def test_cancelling_an_idle_request_does_nothing(self, network: ExecutableNetwork) -> None:
        """Before the first inference, and after each."""
        request = network.create_infer_request()
        request.cancel()
        self.check_usable(request, self.basic.sample())
        request.cancel()
        self.check_usable(request, self.basic.sample(1))

    def test_network_and_request_may_go_while_an_inference_runs(self, core: Core) -> None:
        """The inference completes, its callback is called, and then both are freed."""
        network = self.compile(core, self.basic.model())
        sample, results, done = self.basic.sample(), dict[str, Any](), threading.Event()

        def keep(request: AsyncInferRequest, error: EngineError | None) -> None:
            if error is None:
                results.update(request.results)
            done.set()

        request, gate = self.gated_request(network)
        with gate:
            request.set_callback(keep)
            start_at_gate(request, gate, sample.inputs)
            alive = weakref.ref(request), weakref.ref(network)
            del request, network
            gc.collect()
        assert done.wait(self.limit), "timed out: the callback was not called"
        assert results, "the inference failed"
        for name, value in sample.outputs.items():
            self.assert_value(results[name], value, name)
        self.eventually(lambda: is_freed(alive[0]), "the request is freed after its last inference")
        self.eventually(lambda: is_freed(alive[1]), "the network is freed after its last inference")

    def test_network_is_freed_with_its_last_request(self, core: Core) -> None:
        """A request keeps its network alive, and nothing else does: networks hold weights."""
        network = self.compile(core, self.basic.model())
        network(self.basic.sample().inputs)
        request, alive = network.create_infer_request(), weakref.ref(network)
        del network
        self.check_usable(request, self.basic.sample())
        assert not is_freed(alive)
        del request
        self.eventually(lambda: is_freed(alive), "the network is freed when nothing refers to it")


def _is_late(request: AsyncInferRequest) -> bool:
    """Whether the deadline has passed: at the gate, or on a busy machine before the inference reached it."""
    return request.starts > 0 and request.state is not RequestState.BUSY


async def _result(request: AsyncInferRequest) -> Any:
    return await request
