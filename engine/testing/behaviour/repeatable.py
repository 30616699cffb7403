"""Checks of REPEATABLE: the bits of a row do not depend on the rows beside it, on threads, or on other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final

import numpy as np
import onnx
import pytest
from onnx import helper

from engine.core import Core
from engine.errors import UnsupportedError
from engine.plugin_api import ExecutableNetwork
from engine.properties import INFERENCE_NUM_THREADS, REPEATABLE
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import Array, make_model, tensor
from engine.testing.behaviour.numeric import drawn

_ROWS: Final = (1, 2, 3, 5, 8, 17)
_DEPTH: Final = 300


def _products() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return make_model(nodes, [tensor("x", ["N", _DEPTH])], [tensor("y", None)], {"w": drawn(_DEPTH, 37, seed=1)})


def _one_column() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return make_model(nodes, [tensor("x", ["N", _DEPTH])], [tensor("y", None)], {"w": drawn(_DEPTH, 1, seed=2)})


def _softmax() -> onnx.ModelProto:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
    return make_model(nodes, [tensor("x", ["N", _DEPTH])], [tensor("y", None)])


def _sums() -> onnx.ModelProto:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"])]
    return make_model(nodes, [tensor("x", ["N", _DEPTH])], [tensor("y", None)], {"axes": np.array([1])})


def _convolutions() -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    weights = {"w": drawn(20, 16, 3, 3, seed=3)}
    return make_model(nodes, [tensor("x", ["N", 16, 9, 9])], [tensor("y", None)], weights)


_MODELS: Final[dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...]]]] = {
    "MatMul": (_products, (_DEPTH,)),
    "MatMul, one column": (_one_column, (_DEPTH,)),
    "Softmax": (_softmax, (_DEPTH,)),
    "ReduceSum": (_sums, (_DEPTH,)),
    "Conv": (_convolutions, (16, 9, 9)),
}


class RepeatableChecks(DeviceChecks):
    """A device that has the property REPEATABLE keeps its promise, or refuses the model with `UnsupportedError`."""

    area: ClassVar[str] = "properties"

    @pytest.mark.parametrize("name", _MODELS)
    def test_repeatable_rows(self, core: Core, name: str) -> None:
        """A row has the same bits alone, at any place among any others, and with one thread or the default."""
        make, shape = _MODELS[name]
        row, found = drawn(*shape, seed=4), set()
        for network in self.repeatable(core, make()):
            for rows in _ROWS:
                for place in {0, rows // 2, rows - 1}:
                    found.add(_result(network, row, rows, place))
        assert len(found) == 1, f"{name}: the same row has {len(found)} different results"

    def test_repeatable_requests(self, core: Core) -> None:
        """A row has the same bits while other requests run, each with another number of rows."""
        row, shape = drawn(_DEPTH, seed=4), _MODELS["MatMul"][1]
        assert row.shape == shape
        for network in self.repeatable(core, _products()):
            alone = _result(network, row, 1, 0)
            with ThreadPoolExecutor(4) as pool:
                given = [(network, row, rows, rows // 2) for rows in _ROWS * 4]
                found = list(pool.map(_result, *zip(*given, strict=True)))
            assert set(found) == {alone}, "the same row has other results while other requests run"

    def repeatable(self, core: Core, model: onnx.ModelProto) -> Iterator[ExecutableNetwork]:
        """Networks with the property, of one thread and the default; the check is skipped if there is none."""
        known = core.supported_properties(self.device)
        if REPEATABLE.name not in {each.name for each in known}:
            pytest.skip(f"{self.device} does not have the property {REPEATABLE.name}")
        self.require_support(core, model)
        configs: list[dict[str, object]] = [{}]
        if INFERENCE_NUM_THREADS.name in {each.name for each in known}:
            configs.append({INFERENCE_NUM_THREADS.name: 1})
        for config in configs:
            try:
                made = self.compile(core, model, **{REPEATABLE.name: True, **config})
            except UnsupportedError as e:
                pytest.skip(f"{self.device} refuses {REPEATABLE.name}: {e}")
            yield made


def _result(network: ExecutableNetwork, row: Array, rows: int, place: int) -> bytes:
    batch = drawn(rows, *row.shape, seed=100 + rows)
    batch[place] = row
    return np.ascontiguousarray(network({"x": batch})[0][place]).tobytes()
