"""Checks of networks, requests and cores that many threads use concurrently."""

from __future__ import annotations

from typing import ClassVar

from engine.core import Core
from engine.errors import Busy
from engine.plugin_api import ExecutableNetwork
from engine.testing.behaviour.base import THREADS, DeviceChecks

_ROUNDS = 5


class ThreadChecks(DeviceChecks):
    """Networks, requests and cores can be used from many threads concurrently."""

    area: ClassVar[str] = "threads"

    def test_concurrent_requests(self, network: ExecutableNetwork) -> None:
        """Eight concurrent asynchronous requests, each with its own inputs."""
        requests = [network.create_infer_request() for _ in range(THREADS)]
        for shift in range(_ROUNDS):
            for seed, request in enumerate(requests):
                request.start_async(self.basic.sample(seed + shift).inputs)
            for seed, request in enumerate(requests):
                request.wait(self.limit)
                self.assert_outputs(request.results, self.basic.sample(seed + shift).outputs)

    def test_concurrent_calls_of_one_network(self, network: ExecutableNetwork) -> None:
        """Threads that call concurrently do not get each other's results."""

        def call(thread: int) -> None:
            for shift in range(_ROUNDS):
                sample = self.basic.sample(thread + shift)
                self.assert_outputs(network(sample.inputs), sample.outputs)

        self.in_threads(call)

    def test_requests_are_made_by_many_threads(self, network: ExecutableNetwork) -> None:
        """Every request has a unique id, and works."""
        ids: list[int] = []

        def make(thread: int) -> None:
            for shift in range(_ROUNDS):
                request = network.create_infer_request()
                ids.append(request.request_id)
                self.check_usable(request, self.basic.sample(thread + shift))

        self.in_threads(make)
        assert len(set(ids)) == THREADS * _ROUNDS

    def test_models_are_compiled_by_many_threads(self, core: Core) -> None:
        """One core, one model, many networks, with concurrent inferences."""
        model = core.read_model(self.basic.model())

        def compile_and_run(thread: int) -> None:
            network = core.compile_model(model, self.device, dict(self.config))
            for shift in range(_ROUNDS):
                sample = self.basic.sample(thread + shift)
                self.assert_outputs(network(sample.inputs), sample.outputs)

        self.in_threads(compile_and_run)

    def test_one_request_in_many_threads_is_busy_or_right(self, network: ExecutableNetwork) -> None:
        """Threads that share a request by mistake get `Busy`, never mixed results of two inferences."""
        request, served = network.create_infer_request(), list[int]()

        def infer(thread: int) -> None:
            sample = self.basic.sample(thread)
            for _ in range(_ROUNDS * 4):
                try:
                    result = request.infer(sample.inputs)
                except Busy:
                    continue
                self.assert_outputs(result, sample.outputs)
                served.append(thread)

        self.in_threads(infer)
        assert served
        self.check_usable(request, self.basic.sample())
