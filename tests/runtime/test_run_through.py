"""Requests that another network's requests compute: the contract for devices that run whole models on others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, DeviceError, InferError
from engine.plugin_api import SyncInferRequest

X = np.arange(3, dtype=np.float32).reshape(1, 3)


class Outer(SyncInferRequest):
    """A request of a network that has another one compute."""

    def __init__(self, network: Any, inner: SyncInferRequest) -> None:
        super().__init__(network)
        self.inner = inner

    def start_pipeline(self) -> None:
        self.run_through(self.inner)


@pytest.fixture
def outer(make_network: Any) -> tuple[Outer, dict[str, Any]]:
    """A request, and the hooks of the stages of the inner one."""
    network = make_network()
    return Outer(make_network(), network.create_sync_request()), network.hooks


def test_outputs_and_output_tensors_are_those_of_the_outer_request(outer: Any) -> None:
    request, _ = outer
    first = request.infer(X)[0]
    np.testing.assert_array_equal(first, 2 * X)
    target = np.zeros((1, 6), np.float32)
    contiguous = np.zeros_like(X)
    request.set_output_tensor(0, contiguous)
    assert request.infer(X)[0] is contiguous
    np.testing.assert_array_equal(contiguous, 2 * X)
    strided = target[:, ::2]
    request.set_output_tensor(0, strided)
    assert request.infer(3 * X)[0] is strided
    np.testing.assert_array_equal(strided, 6 * X)
    np.testing.assert_array_equal(first, 2 * X)


def test_the_inner_request_keeps_no_tensors(outer: Any) -> None:
    request, _ = outer
    request.infer(X)
    with pytest.raises(InferError):
        request.inner.get_input_tensor(0)
    with pytest.raises(InferError):
        request.inner.get_output_tensor(0)


def test_errors_reach_the_outer_request_and_both_stay_usable(outer: Any) -> None:
    request, hooks = outer
    aborts = request.inner.aborts
    for error, kind in ((DeviceError("lost"), DeviceError), (ValueError("a bug"), DeviceError)):

        def fail(_: Any, error: Exception = error) -> None:
            raise error

        hooks["wait_pipeline"] = fail
        with pytest.raises(kind, match=str(error)):
            request.infer(X)
        del hooks["wait_pipeline"]
        np.testing.assert_array_equal(request.infer(X)[0], 2 * X)
    assert request.inner.aborts == aborts + 2


def test_a_cancellation_reaches_the_inner_request_while_it_runs(outer: Any) -> None:
    request, hooks = outer
    hooks["start_pipeline"] = lambda inner: request.request_cancel(Cancelled("enough"))
    with pytest.raises(Cancelled, match="enough"):
        request.infer(X)
    assert request.inner.aborts == 1
    del hooks["start_pipeline"]
    np.testing.assert_array_equal(request.infer(X)[0], 2 * X)
    request.request_cancel(Cancelled("late"))  # while nothing runs: without an effect on the next inference
    np.testing.assert_array_equal(request.infer(X)[0], 2 * X)
