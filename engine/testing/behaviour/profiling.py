"""Checks of the profiles that PERF_COUNT turns on."""

from __future__ import annotations

import time
from typing import ClassVar

from engine.core import Core
from engine.plugin_api import AsyncInferRequest, ProfilingInfo
from engine.testing.behaviour.base import DeviceChecks, stage_count


class ProfilingChecks(DeviceChecks):
    """With PERF_COUNT, stages and nodes of an inference are recorded; without it, nothing."""

    area: ClassVar[str] = "profiles"

    def test_nothing_is_recorded_unless_asked_for(self, core: Core) -> None:
        """Applications that do not profile have no overhead."""
        request = self.compile(core, self.basic.model(), PERF_COUNT=False).create_infer_request()
        self.check_usable(request, self.basic.sample())
        info = request.profiling_info
        assert (info.stages, info.nodes) == ((), ())

    def test_stages_run_in_order(self, core: Core) -> None:
        """Every stage once, each after the previous one has ended, within the inference."""
        network = self.compile(core, self.basic.model(), PERF_COUNT=True)
        request = network.create_infer_request()
        for run_it in (self._infer, self._start_and_wait):
            before = time.perf_counter_ns()
            run_it(request)
            after = time.perf_counter_ns()
            stages = request.profiling_info.stages
            times = [time for stage in stages for time in (stage.start_ns, stage.end_ns)]
            assert times == sorted(times)
            assert before <= times[0]
            assert times[-1] <= after
            assert all(stage.name and stage.executor for stage in stages)
        assert len(stages) == stage_count(network)

    def test_every_node_is_recorded_once(self, core: Core) -> None:
        """Each with its operator and how it ran, within the inference; no records of the previous inference remain."""
        request = self.compile(core, self.basic.model(), PERF_COUNT=True).create_infer_request()
        infos: list[ProfilingInfo] = []
        for run_it in (self._infer, self._start_and_wait, self._infer):
            run_it(request)
            infos.append(request.profiling_info)
        for info in infos:
            assert info.nodes, "no node was recorded"
            names = [node.name for node in info.nodes]
            assert len(set(names)) == len(names), f"a node was recorded twice: {names}"
            begin, end = info.stages[0].start_ns, info.stages[-1].end_ns
            for node in info.nodes:
                assert node.op_type, f"`{node.name}` has no operator"
                assert node.status, f"`{node.name}` does not say how it ran"
                is_inside = begin <= node.start_ns <= node.start_ns + node.duration_ns <= end
                assert is_inside, f"`{node.name}` ran outside the inference ({begin} to {end} ns): {node}"
        assert len({tuple(sorted(node.name for node in info.nodes)) for info in infos}) == 1
        assert infos[0] != infos[2]

    def test_profiles_name_their_request(self, core: Core) -> None:
        """The records of two requests can be distinguished."""
        network = self.compile(core, self.basic.model(), PERF_COUNT=True)
        ids = set()
        for _ in range(3):
            request = network.create_infer_request()
            self._infer(request)
            assert request.profiling_info.request_id == request.request_id
            ids.add(request.request_id)
        assert len(ids) == 3

    def _infer(self, request: AsyncInferRequest) -> None:
        request.infer(self.basic.sample().inputs)

    def _start_and_wait(self, request: AsyncInferRequest) -> None:
        request.start_async(self.basic.sample().inputs)
        request.wait(self.limit)
