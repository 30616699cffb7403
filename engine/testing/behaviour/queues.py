"""Checks of `AsyncInferQueue` over the device's requests."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from engine.errors import Busy, CallbackError, Cancelled, DeadlineExceeded, InferError, InputError
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.runtime import AsyncInferQueue
from engine.testing.behaviour.base import DeviceChecks, start_at_gate


class QueueChecks(DeviceChecks):
    """A queue runs every job once, never exceeds its length, and reports failures."""

    area: ClassVar[str] = "asynchronous"

    @pytest.mark.parametrize("jobs", [0, 1, 3])
    def test_every_job_runs_once(self, network: ExecutableNetwork, jobs: int) -> None:
        """Each callback gets the results of its job; the queue can be used again."""
        results: dict[int, Any] = {}

        def keep(request: AsyncInferRequest, seed: int) -> None:
            assert seed not in results
            results[seed] = dict(request.results)

        queue = AsyncInferQueue(network, jobs, callback=keep)
        assert len(queue) == (jobs or network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        for _ in range(2):
            results.clear()
            for seed in range(10):
                queue.start_async(self.basic.sample(seed).inputs, seed, timeout=self.limit)
            queue.wait_all(self.limit)
            assert sorted(results) == list(range(10))
            for seed, result in results.items():
                for name, value in self.basic.sample(seed).outputs.items():
                    self.assert_value(result[name], value, f"{name} of job {seed}")

    @pytest.mark.parametrize(("policy", "error"), [("reject", Busy), ("block", DeadlineExceeded)])
    def test_full_queue(self, network: ExecutableNetwork, policy: Any, error: type[InferError]) -> None:
        """No more inferences than the length start; those in flight are not disturbed."""
        sample = self.basic.sample()
        with self.gated(network, 0) as gate:
            queue = AsyncInferQueue(network, 1, policy)
        with gate:
            start_at_gate(queue, gate, sample.inputs)
            assert not queue.is_ready
            with pytest.raises(error):
                queue.start_async(self.basic.sample(1).inputs, timeout=0.01)
            with pytest.raises(DeadlineExceeded):
                queue.wait_all(0)
        queue.wait_all(self.limit)
        self.assert_outputs(queue[0].results, sample.outputs)
        queue.start_async(sample.inputs)
        queue.wait_all(self.limit)

    def test_a_failed_job_is_reported_and_harms_no_other(self, network: ExecutableNetwork) -> None:
        """Wrong inputs are refused at once; a callback's error is raised by `wait_all`, once."""
        sample, done = self.basic.sample(), list[int]()

        def picky(request: AsyncInferRequest, job: int) -> None:
            if job == 1:
                raise ValueError("not this one")
            done.append(job)

        queue = AsyncInferQueue(network, 2, callback=picky)
        with pytest.raises(InputError, match="inputs: a, b"):
            queue.start_async({"typo": sample.inputs["a"]}, 0)
        for job in range(4):
            queue.start_async(sample.inputs, job, timeout=self.limit)
        with pytest.raises(CallbackError, match="not this one"):
            queue.wait_all(self.limit)
        queue.wait_all(self.limit)
        assert sorted(done) == [0, 2, 3]

    def test_cancelled_queue_can_be_used_again(self, network: ExecutableNetwork) -> None:
        """Everything in flight ends as cancelled."""
        sample = self.basic.sample()
        with self.gated(network, 0) as gate:
            queue = AsyncInferQueue(network, 1)
        with gate:
            start_at_gate(queue, gate, sample.inputs)
            queue.cancel()
        with pytest.raises(Cancelled):
            queue.wait_all(self.limit)
        queue.start_async(sample.inputs)
        queue.wait_all(self.limit)
        self.assert_outputs(queue[0].results, sample.outputs)

    def test_queue_that_makes_no_sense_is_refused(self, network: ExecutableNetwork) -> None:
        """A negative length, an unknown policy."""
        with pytest.raises(InferError, match="jobs"):
            AsyncInferQueue(network, -1)
        with pytest.raises(InferError, match="policy"):
            AsyncInferQueue(network, 1, policy="drop")  # type: ignore[arg-type]
