"""Checks that a query keeps its word, over random nodes of many operators and random models of what is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pytest

from engine.core import Core
from engine.errors import UnsupportedError
from engine.ir import Model
from engine.ops.cases import OperatorCase
from engine.ops.reference import evaluate
from engine.plugin_api import ExecutableNetwork, SupportLevel
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.claims import claimed, random_model
from engine.testing.operators import assert_right
from engine.testing.random_nodes import MAKERS, random_node

_NODES: Final = 3
"""How many random nodes of each operator are tried."""
_TERMS: Final = 512
"""No element of their results is a longer sum."""


class HonestyChecks(DeviceChecks):
    """Claimed nodes compile, compute, and run as claimed; refused nodes have a cause, and are refused again."""

    area: ClassVar[str] = "query"

    @pytest.mark.parametrize("op_type", MAKERS)
    def test_random_nodes(self, core: Core, op_type: str) -> None:
        """Each random node is either right and runs as the query says, or refused with a reason, by name."""
        for seed in range(_NODES):
            self._check_node(core, random_node(op_type, seed), f"{op_type}, seed {seed}")

    @pytest.mark.parametrize("seed", range(8))
    def test_random_models(self, core: Core, seed: int) -> None:
        """A model whose operations are each claimed by themselves compiles, computes, and runs as the query says."""
        operators = claimed(lambda model: core.query_model(model, self.device, dict(self.config)).is_supported)
        if not operators:
            pytest.skip(self.why_not_basic())
        made = random_model(operators, seed)
        answer = core.query_model(made.model, self.device, dict(self.config))
        refused = answer.at(SupportLevel.REFUSED)
        assert not refused, f"model {seed}: claimed by itself, refused in a model: {dict(refused)}"
        network = self.compile(core, made.model, PERF_COUNT=True)
        request = network.create_infer_request()
        made.check(request.infer(made.sample.inputs), self.rtol, f"model {seed}")
        if {support.level for support in answer.nodes.values()} == {SupportLevel.NATIVE}:
            _check_native(request.profiling_info.nodes, f"model {seed}")

    def _check_node(self, core: Core, case: OperatorCase, where: str) -> None:
        for as_constants in (False, True):
            model, feeds = case.model(as_constants=as_constants)
            answer = core.query_model(model, self.device, dict(self.config))
            refused = answer.at(SupportLevel.REFUSED)
            if not refused and feeds:
                self._check_claimed(core, case, model, feeds, where)
                return
            for name, support in refused.items():
                assert support.cause, f"{where}: `{name}` is refused without a cause"
                assert support.reason.strip(), f"{where}: `{name}` is refused without a reason"
            if refused:
                with pytest.raises(UnsupportedError) as caught:
                    core.compile_model(model, self.device, dict(self.config))
                is_named = any(name in str(caught.value) for name in refused)
                assert is_named, f"{where}: the error does not name any of {', '.join(refused)}: {caught.value}"

    def _check_claimed(self, core: Core, case: OperatorCase, model: Model, feeds: dict[str, Any], where: str) -> None:
        answer = core.query_model(model, self.device, dict(self.config))
        network: ExecutableNetwork = core.compile_model(model, self.device, {**self.config, "PERF_COUNT": True})
        request = network.create_infer_request()
        result = request.infer(feeds)
        got = [result[index] for index in range(len(model.results))]
        if all(isinstance(value, np.ndarray) for value in got):
            assert_right(replace(case, terms=_TERMS), got)
        else:
            node, _ = case.node()
            for actual, expected in zip(got, evaluate(node, case.arrays()), strict=True):
                self.assert_value(actual, expected, where)
        if all(support.level is SupportLevel.NATIVE for support in answer.nodes.values()):
            _check_native(request.profiling_info.nodes, where)


def _check_native(nodes: Any, where: str) -> None:
    fallen = [node.name for node in nodes if node.status == "reference"]
    assert not fallen, f"{where}: claimed as native, but run on the reference evaluator: {fallen}"
