"""Repeated inferences of one request, which skip most of the checks, behave as the first one."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import Cancelled, EngineError, InputError
from engine.ir import Constant, Model, Parameter, f32

Array = np.ndarray[Any, np.dtype[Any]]
Request = Any
X = np.array([[-1, 2, -3]], np.float32)
Y = np.array([[4, 5, 6]], np.float32)


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def subtraction(rows: int | str = 1) -> Model:
    """relu(x) - 2y, each [rows, 3]."""
    x, y = Parameter(f32, [rows, 3], "x"), Parameter(f32, [rows, 3], "y")
    return Model([ops.Sub(ops.Relu(x), ops.Mul(y, Constant(np.float32(2))))], [x, y])


def expected(x: Array, y: Array) -> Array:
    return np.maximum(x, 0) - 2 * y


@pytest.fixture
def request_(core: Core) -> Request:
    """A request that has run and may skip checks."""
    request = core.compile_model(subtraction(), "CPU").create_infer_request()
    for _ in range(2):
        request.infer({"x": X, "y": Y})
    return request


def test_the_same_arrays_give_what_they_hold_then(request_: Request) -> None:
    x, y = X.copy(), Y.copy()
    for factor in range(1, 4):
        x[:] = factor * X
        np.testing.assert_array_equal(request_.infer({"x": x, "y": y})[0], expected(x, y))
        np.testing.assert_array_equal(request_.infer()[0], expected(x, y))


@pytest.mark.parametrize(
    "given", [lambda x, y: {"x": x, "y": y}, lambda x, y: [x, y], lambda x, y: (x, y), lambda x, y: {0: x, 1: y}]
)
def test_new_arrays_are_bound_and_former_results_stay(request_: Request, given: Callable[[Array, Array], Any]) -> None:
    pairs = [(factor * X, factor + Y) for factor in range(1, 5)]
    results = [request_.infer(given(x, y)) for x, y in pairs]
    for result, (x, y) in zip(results, pairs, strict=True):
        np.testing.assert_array_equal(result[0], expected(x, y))
    assert request_.get_input_tensor("x") is pairs[-1][0]
    assert request_.get_output_tensor(0) is results[-1][0]


def test_inputs_that_are_not_given_stay_bound(request_: Request) -> None:
    np.testing.assert_array_equal(request_.infer({"x": 2 * X})[0], expected(2 * X, Y))
    request_.set_input_tensor("y", 3 * Y)
    np.testing.assert_array_equal(request_.infer()[0], expected(2 * X, 3 * Y))
    np.testing.assert_array_equal(request_.infer({"x": X})[0], expected(X, 3 * Y))


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": X.astype(np.float64)}, {"x": X.astype(np.int32)}, {"x": X[0]}, {"x": X[:, :2]}, {"x": np.repeat(X, 2, 0)},
        {"x": X.tolist()}, {"x": None}, {"z": X}, {"x": X, 0: X}, {2: X}, [X], [X, Y, Y], X, np.ma.masked_array([X, Y]),
        {"x": np.ma.masked_array(X)}, {("x",): X},
    ],
    ids=lambda wrong: f"{wrong!r:.40}",
)  # fmt: skip
def test_a_wrong_input_is_refused_as_at_first_and_changes_nothing(core: Core, request_: Request, wrong: Any) -> None:
    with pytest.raises(InputError) as first:
        core.compile_model(subtraction(), "CPU").create_infer_request().infer(wrong)
    former = request_.results
    with pytest.raises(InputError, match=re.escape(str(first.value))):
        request_.infer(wrong)
    assert request_.results is former
    np.testing.assert_array_equal(request_.infer()[0], expected(X, Y))


def test_what_must_be_copied_is_copied_at_each_inference(request_: Request) -> None:
    base = np.zeros((1, 6), np.float32)
    view = base[:, ::2]
    for factor in range(1, 4):
        view[:] = factor * X
        np.testing.assert_array_equal(request_.infer({"x": view})[0], expected(factor * X, Y))
        view[:] = -factor * X
        np.testing.assert_array_equal(request_.infer()[0], expected(-factor * X, Y))
    assert request_.get_input_tensor("x") is view
    np.testing.assert_array_equal(request_.infer({"x": X})[0], expected(X, Y))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.view(type("Subclass", (np.ndarray,), {})),
        lambda x: np.frombuffer(bytes(1) + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        np.asfortranarray,
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),  # read-only
    ],
    ids=["subclass", "unaligned", "fortran", "read-only"],
)
def test_unusual_arrays_are_taken_as_at_first(request_: Request, make: Callable[[Array], Array]) -> None:
    for factor in range(1, 4):
        np.testing.assert_array_equal(request_.infer({"x": make(factor * X)})[0], expected(factor * X, Y))


def test_a_bound_array_that_shrinks_is_an_error_and_no_crash(request_: Request) -> None:
    x = X.copy()
    request_.infer({"x": x})
    request_.infer()
    x.resize((1, 1), refcheck=False)
    with pytest.raises(InputError, match="4 bytes; expected 12"):
        request_.infer()
    np.testing.assert_array_equal(request_.infer({"x": X})[0], expected(X, Y))


def test_output_tensors_are_filled_once_they_are_set_and_until_they_are_not(request_: Request) -> None:
    target = np.zeros((1, 3), np.float32)
    request_.set_output_tensor(0, target)
    for factor in range(1, 4):
        assert request_.infer({"x": factor * X})[0] is target
        np.testing.assert_array_equal(target, expected(factor * X, Y))
    request_.set_output_tensor(0, None)
    for _ in range(2):
        assert request_.infer({"x": -X})[0] is not target
    np.testing.assert_array_equal(target, expected(3 * X, Y))


def test_tensors_that_were_cleared_are_missing(request_: Request) -> None:
    request_.clear_tensors()
    with pytest.raises(InputError, match=r"`x` .* is missing"):
        request_.infer()
    with pytest.raises(InputError, match=r"`y` .* is missing"):
        request_.infer({"x": X})
    np.testing.assert_array_equal(request_.infer({"x": X, "y": Y})[0], expected(X, Y))


def test_a_cancellation_stops_one_inference_only(request_: Request) -> None:
    sync, seen = request_._request, []
    start = sync.start_pipeline

    def cancelled_first() -> None:
        request_.cancel()
        start()

    for _ in range(3):
        sync.start_pipeline = cancelled_first
        with pytest.raises(Cancelled):
            request_.infer()
        del sync.start_pipeline
        request_.cancel()  # nothing runs
        seen.append(request_.infer()[0])
    for result in seen:
        np.testing.assert_array_equal(result, expected(X, Y))


def test_shapes_may_change_from_one_inference_to_the_next(core: Core) -> None:
    request = core.compile_model(subtraction("n"), "CPU").create_infer_request()
    for rows in (1, 1, 1, 4, 4, 2, 4, 1, 1):
        x, y = np.repeat(X, rows, 0) * rows, np.repeat(Y, rows, 0)
        np.testing.assert_array_equal(request.infer({"x": x, "y": y})[0], expected(x, y))
        np.testing.assert_array_equal(request.infer([x, y])[0], expected(x, y))
    with pytest.raises(InputError, match="dimension n must be the same everywhere"):
        request.infer({"x": np.repeat(X, 2, 0)})
    np.testing.assert_array_equal(request.infer([X, Y])[0], expected(X, Y))


def test_every_inference_has_a_profile(core: Core) -> None:
    request = core.compile_model(subtraction(), "CPU", {"PERF_COUNT": True}).create_infer_request()
    for _ in range(3):
        request.infer({"x": X, "y": Y})
        assert len(request.profiling_info.stages) == 4
        assert request.profiling_info.nodes


def test_background_inferences_call_back_each_time(request_: Request) -> None:
    results: list[Array] = []

    def called(request: Request, error: EngineError | None) -> None:
        assert error is None
        results.append(request.results[0])

    request_.set_callback(called)
    for factor in range(1, 4):
        request_.start_async({"x": factor * X})
        request_.wait()
    assert len(results) == 3
    for factor, result in enumerate(results, 1):
        np.testing.assert_array_equal(result, expected(factor * X, Y))


def test_requests_in_several_threads_keep_their_results_apart(core: Core) -> None:
    network = core.compile_model(subtraction(), "CPU", {"NUM_STREAMS": 2})

    def stream(seed: int) -> bool:
        request, rng = network.create_infer_request(), np.random.default_rng(seed)
        for _ in range(200):
            x, y = rng.random((1, 3), np.float32), rng.random((1, 3), np.float32)
            if not np.array_equal(request.infer({"x": x, "y": y})[0], expected(x, y)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(stream, range(4)))


def test_no_check_is_repeated_for_arrays_of_known_form(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call takes a few microseconds because of that."""
    bound: list[object] = []
    monkeypatch.setattr(request_._request, "_bind_checked", bound.append)
    request_.infer()
    request_.infer({"x": 2 * X, "y": Y})
    request_.infer([X, Y])
    assert not bound
