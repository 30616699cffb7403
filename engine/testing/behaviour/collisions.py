"""Checks of what requests might share: memory between stages, and large tensors that take long to read and write."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np

from engine.core import Core
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.testing.behaviour.base import THREADS, DeviceChecks, stage_count, start_at_gate
from engine.testing.behaviour.basic import BasicModel
from engine.testing.behaviour.cases import Case, Sample
from engine.testing.behaviour.long_models import enlarged

_ROUNDS = 2


class CollisionChecks(DeviceChecks):
    """Requests do not use each other's memory, however long an inference takes."""

    area: ClassVar[str] = "threads"

    def test_requests_share_no_memory_between_stages(self, network: ExecutableNetwork) -> None:
        """While one inference is held between two stages, another one runs from start to end; both are right."""
        held, other = self.basic.sample(1), self.basic.sample(2)
        for position in range(stage_count(network) + 1):
            request, gate = self.gated_request(network, position)
            beside = network.create_infer_request()
            with gate:
                start_at_gate(request, gate, held.inputs)
                self._infer_within_limit(beside, other, position)
            request.wait(self.limit)
            try:
                self.assert_outputs(request.results, held.outputs)
            except AssertionError as e:
                raise AssertionError(
                    f"an inference that was held before stage {position} got results of another request: {e}"
                ) from None

    def test_large_tensors_in_many_threads(self, core: Core) -> None:
        """Eight threads call one network with tensors of megabytes, so that their inferences overlap."""
        network, large = self._large_network(core)
        samples = [_spread(large, thread) for thread in range(THREADS)]

        def call(thread: int) -> None:
            for _ in range(_ROUNDS):
                self._assert_equal(network(samples[thread].inputs), samples[thread], f"thread {thread}")

        self.in_threads(call)

    def test_large_tensors_in_many_requests(self, core: Core) -> None:
        """Eight asynchronous requests with tensors of megabytes, of two networks, run concurrently."""
        network, large = self._large_network(core)
        second = self.compile(core, large.model())
        requests = [(network, second)[index % 2].create_infer_request() for index in range(THREADS)]
        samples = [_spread(large, index) for index in range(THREADS)]
        for _ in range(_ROUNDS):
            for request, sample in zip(requests, samples, strict=True):
                request.start_async(sample.inputs)
            for index, request in enumerate(requests):
                request.wait(self.limit)
                self._assert_equal(request.results, samples[index], f"request {index}")

    def test_one_array_is_the_input_of_many_requests(self, core: Core) -> None:
        """Threads may pass the same arrays; no inference writes to them."""
        network, large = self._large_network(core)
        sample = _spread(large, 3)
        before = {name: value.copy() for name, value in sample.inputs.items()}
        self.in_threads(lambda thread: self._assert_equal(network(sample.inputs), sample, f"thread {thread}"))
        for name, value in before.items():
            assert np.array_equal(sample.inputs[name], value), f"input `{name}` was written to"

    def _large_network(self, core: Core) -> tuple[ExecutableNetwork, BasicModel]:
        large = enlarged(self.basic)
        return self.compile_or_skip(core, Case("large", large.model(), ())), large

    def _infer_within_limit(self, request: AsyncInferRequest, sample: Sample, position: int) -> None:
        """Infer on another thread, since the held request may block this one."""
        failures = list[BaseException]()

        def infer() -> None:
            try:
                self.assert_outputs(request.infer(sample.inputs), sample.outputs)
            except BaseException as e:
                failures.append(e)

        thread = threading.Thread(target=infer, daemon=True)
        thread.start()
        thread.join(self.limit)
        assert not thread.is_alive(), f"a request that is held before stage {position} blocks another one's `infer`"
        if failures:
            raise AssertionError(
                f"a request that is held before stage {position} disturbs another one: {failures[0]}"
            ) from failures[0]

    def _assert_equal(self, result: Any, sample: Sample, who: str) -> None:
        for name, expected in sample.outputs.items():
            close = np.isclose(result[name], expected, rtol=self.rtol, atol=self.atol)
            wrong = int(close.size - np.count_nonzero(close))
            assert wrong == 0, f"{who}: {wrong} of {close.size} elements of `{name}` do not follow from its inputs"


def _spread(large: BasicModel, seed: int) -> Sample:
    """Inputs that differ from other seeds' inputs in every element."""
    count = int(np.prod(large.shape))
    ramp = (np.arange(count, dtype=np.float32) % 251).reshape(large.shape) / 128
    a, b = ramp + np.float32(4 * seed), np.float32(2 * seed + 1) - ramp
    return Sample({"a": a, "b": b}, large.answer(a, b))
