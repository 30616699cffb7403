"""Checks of large tensors and of buffers: results that only go wrong with more than a few elements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Final

import numpy as np
import onnx
import pytest
from onnx import helper

from engine.core import Core
from engine.plugin_api import ExecutableNetwork
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import Array, make_model, tensor
from engine.testing.conformance.selection import LIMIT

_ROWS, _COLUMNS = 517, 1021
"""Lengths that are not multiples of a vector, a tile or a page; together, they give 2 MiB of float32."""

_ELEMENTWISE: Final[dict[str, Callable[[Array], Array]]] = {
    "Neg": np.negative, "Abs": np.abs, "Relu": lambda x: np.maximum(x, 0), "Identity": lambda x: x,
    "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
_PAIRS: Final = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}


def _x(seed: int) -> Array:
    return np.random.default_rng(seed).uniform(-3, 3, (_ROWS, _COLUMNS)).astype(np.float32)


def _answer(op_type: str, x: Array) -> Array:
    if op_type in _PAIRS:
        return np.asarray(_PAIRS[op_type](x, x[::-1, ::-1]), np.float32)
    return np.asarray(_ELEMENTWISE[op_type](x.astype(np.float64)), np.float32)


def _feeds(op_type: str, x: Array) -> dict[str, Array]:
    return {"x": x, "z": x[::-1, ::-1]} if op_type in _PAIRS else {"x": x}


def _large_model(op_type: str) -> onnx.ModelProto:
    names = ["x", "z"] if op_type in _PAIRS else ["x"]
    shape = [_ROWS, _COLUMNS]
    node = helper.make_node(op_type, names, ["y"], name="node")
    return make_model([node], [tensor(name, shape) for name in names], [tensor("y", shape)], name="large")


class LargeChecks(DeviceChecks):
    """Tensors of megabytes, whose lengths are not multiples of vectors, tiles or pages."""

    area: ClassVar[str] = "results"

    @pytest.mark.parametrize("op_type", [*_PAIRS, *_ELEMENTWISE])
    def test_large_tensors(self, core: Core, op_type: str) -> None:
        """Every element, from the first to the last, in each of several inferences; views are read as they are."""
        network = self.large(core, op_type)
        request = network.create_infer_request()
        for seed in (1, 2):
            x = _x(seed)
            self._check_large(
                request.infer(_feeds(op_type, x))["y"], _answer(op_type, x), f"{op_type}, inference {seed}"
            )

    def test_large_tensors_of_two_requests(self, core: Core) -> None:
        """Requests that run at the same time, and requests of two networks, share no memory."""
        networks = self._two(core)
        work = [(op_type, network.create_infer_request(), seed) for op_type, network in networks for seed in (1, 2)]
        errors: list[BaseException] = []
        start = threading.Barrier(len(work))

        def run(op_type: str, request: object, seed: int) -> None:
            try:
                x = _x(seed)
                expected = _answer(op_type, x)
                start.wait(LIMIT)
                for _ in range(8):
                    result = request.infer(_feeds(op_type, x))["y"]  # type: ignore[attr-defined]
                    self._check_large(result, expected, f"{op_type}, request {seed}, beside others")
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=run, args=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a thread did not end in time"
        if errors:
            raise errors[0]

    def test_large_results_stay(self, core: Core) -> None:
        """A result is not overwritten by the next inference, of this request or another."""
        op_type, network = self._two(core)[0]
        request, other = network.create_infer_request(), network.create_infer_request()
        first, second = _x(1), _x(2)
        kept = request.infer(_feeds(op_type, first))["y"]
        other.infer(_feeds(op_type, second))
        request.infer(_feeds(op_type, second))
        self._check_large(kept, _answer(op_type, first), f"{op_type}, after two later inferences")

    def large(self, core: Core, op_type: str) -> ExecutableNetwork:
        """The operator on large tensors, compiled, or the check skipped with the device's reason."""
        model = _large_model(op_type)
        self.require_support(core, model)
        return self.compile(core, model)

    def _two(self, core: Core) -> list[tuple[str, ExecutableNetwork]]:
        claimed = [
            op_type
            for op_type in (*_PAIRS, *_ELEMENTWISE)
            if core.query_model(_large_model(op_type), self.device, dict(self.config)).is_supported
        ]
        if not claimed:
            pytest.skip(f"{self.device} does not claim any of {', '.join((*_PAIRS, *_ELEMENTWISE))}")
        return [(op_type, self.large(core, op_type)) for op_type in (claimed[0], claimed[-1])]

    def _check_large(self, actual: Array, expected: Array, where: str) -> None:
        assert actual.dtype == expected.dtype, f"{where}: the result is {actual.dtype}, expected {expected.dtype}"
        assert actual.shape == expected.shape, f"{where}: the result has shape {actual.shape}"
        is_wrong = ~np.isclose(actual, expected, rtol=self.rtol, atol=self.atol)
        assert not is_wrong.any(), (
            f"{where}: {int(is_wrong.sum())} of {is_wrong.size} elements are wrong, "
            f"the first at {np.argwhere(is_wrong)[0].tolist()}"
        )
