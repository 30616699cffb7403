"""Checks of what a profile says: whose nodes it names, and that its times add up."""

from __future__ import annotations

import time
from typing import ClassVar, Final

import pytest

from engine.core import Core
from engine.plugin_api import AsyncInferRequest, NodeProfile, ProfilingInfo
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import CASES, Case, Sample
from engine.testing.behaviour.long_models import find_long_model

_NAMED: Final = [case for case in CASES if case.name in ("elementwise", "convolution", "softmax", "diamond")]


class ProfileChecks(DeviceChecks):
    """A profile names nodes of the user's model, and its times are possible.

    A device that runs a model on others may also record its subgraphs, with the operator `Subgraph`, and append `
    (subgraph N)` to the name of a node whose parts run in several. A device that runs several nodes as one records a
    subgraph that names them, and no record of one of them.
    """

    area: ClassVar[str] = "profiles"

    def test_names_are_those_of_the_model(self, core: Core) -> None:
        """Every record names a node of the model that was compiled; of fused nodes, one of them; of a subgraph that ran
        as one, all of them.
        """
        network = self.compile(core, self.basic.model(), PERF_COUNT=True)
        request = network.create_infer_request()
        request.infer(self.basic.sample().inputs)
        self._check_names(request.profiling_info, {node.name for node in self.basic.model().graph.node})

    @pytest.mark.parametrize("case", _NAMED, ids=str)
    def test_names_after_fusion_are_those_of_the_model(self, core: Core, case: Case) -> None:
        """Whatever the device makes of several nodes, it records it under the name of one of them."""
        named = Case(case.name, type(case.model)(), case.samples)
        named.model.CopyFrom(case.model)
        for index, node in enumerate(named.model.graph.node):
            node.name = f"user_{index}_{node.op_type}"
        network = self.compile_or_skip(core, named, PERF_COUNT=True)
        request = network.create_infer_request()
        request.infer(case.samples[0].inputs)
        self._check_names(request.profiling_info, {node.name for node in named.model.graph.node})

    def test_times_add_up(self, core: Core) -> None:
        """All times lie between start and end, measured from outside; their sum fits into them."""
        request = self.compile(core, self.basic.model(), PERF_COUNT=True).create_infer_request()
        for seed in range(3):
            sample = self.basic.sample(seed)
            self._check_times(request, sample, is_async=False)
            self._check_times(request, sample, is_async=True)

    def test_long_operators_take_time(self, core: Core) -> None:
        """The records of a chain of long operators account for a considerable part of the inference's time, in
        nanoseconds.
        """
        long = find_long_model(lambda model: core.query_model(model, self.device, dict(self.config)).is_supported)
        if long is None:
            pytest.skip(f"{self.device} supports neither MatMul nor Conv, from which a long chain is made")
        request = self.compile(core, long.model, PERF_COUNT=True).create_infer_request()
        request.infer(long.inputs)
        self._check_times(request, Sample(long.inputs, {"y": long.answer}), is_async=False)
        info = request.profiling_info
        took = info.stages[-1].end_ns - info.stages[0].start_ns
        counted = sum(node.duration_ns for node in _of_nodes(info))
        assert counted >= took // 50, f"an inference of {took} ns has nodes of {counted} ns in total"

    def _check_names(self, info: ProfilingInfo, names: set[str]) -> None:
        assert _of_nodes(info), "no node was recorded"
        named = [name for node in _of_nodes(info) for name in node.nodes or (node.name.partition(" (subgraph ")[0],)]
        strangers = sorted(set(named) - names)
        assert not strangers, f"the profile names {strangers}; the model's nodes are {sorted(names)}"
        joined = [name for node in _of_nodes(info) for name in node.nodes]
        twice = sorted({name for name in joined if named.count(name) > 1})
        assert not twice, f"a subgraph that ran as one names {twice}, and so does another record"

    def _check_times(self, request: AsyncInferRequest, sample: Sample, *, is_async: bool) -> None:
        begin = time.perf_counter_ns()
        if is_async:
            request.start_async(sample.inputs)
            request.wait(self.limit)
        else:
            request.infer(sample.inputs)
        end = time.perf_counter_ns()
        info = request.profiling_info
        assert _of_nodes(info), "no node was recorded"
        for node in info.nodes:
            assert node.duration_ns >= 0, f"`{node.name}` took {node.duration_ns} ns"
            last = node.start_ns + node.duration_ns
            assert begin <= node.start_ns <= last <= end, (
                f"`{node.name}` ran outside the inference: {node.start_ns} to {last}, inference {begin} to {end} ns "
                "(times come from time.perf_counter_ns)"
            )
        executors = max(1, len({stage.executor for stage in info.stages}))
        counted = sum(node.duration_ns for node in _of_nodes(info))
        assert counted <= (end - begin) * executors, (
            f"the nodes took {counted} ns in total, the inference {end - begin} ns on {executors} executors"
        )


def _of_nodes(info: ProfilingInfo) -> list[NodeProfile]:
    return [node for node in info.nodes if not node.is_total]
