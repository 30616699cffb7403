"""`PlanRunner`: what it takes without more checks is right, and whatever else is left to others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, InputError, PlanError
from engine.native import CancelFlag, PlanBuilder, PlanRunner

Array = np.ndarray[Any, np.dtype[Any]]
F32 = np.dtype(np.float32)
INDEX = {"x": 0, "y": 1, 0: 0, 1: 1}


def two_copies(length: int = 6) -> PlanRunner:
    """Copies `x` [2, length/2] and `y` [length] of float32."""
    builder = PlanBuilder()
    inputs = [builder.add_input(4 * length, 4), builder.add_input(4 * length, 4)]
    outputs = [builder.add_output(4 * length, 4), builder.add_output(4 * length, 4)]
    for source, target in zip(inputs, outputs, strict=True):
        builder.add_step("copy", [source], [target])
    forms = [(F32, (2, length // 2)), (F32, (length,))]
    return PlanRunner(builder.build(), forms, forms)


X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.arange(6, 12, dtype=np.float32)


@pytest.mark.parametrize("given", [None, {}, {"x": X}, {"y": Y, "x": X}, [X, Y], (X, Y)], ids=repr)
def test_arrays_of_the_form_are_bound_in_place(given: object) -> None:
    current = [X, Y]
    bound = two_copies().bind(INDEX, current, given)
    assert bound is not None
    assert bound[0] is X
    assert bound[1] is Y


def test_what_is_given_replaces_what_is_bound_and_leaves_the_list_as_it_was() -> None:
    other, current = X + 1, [X, Y]
    bound = two_copies().bind(INDEX, current, {"x": other})
    assert bound is not None
    assert bound[0] is other
    assert bound[1] is Y
    assert current[0] is X


def test_one_array_is_the_only_input() -> None:
    builder = PlanBuilder()
    source, target = builder.add_input(24, 4), builder.add_output(24, 4)
    builder.add_step("copy", [source], [target])
    runner = PlanRunner(builder.build(), [(F32, (2, 3))], [(F32, (2, 3))])
    bound = runner.bind({"x": 0}, [None], X)
    assert bound is not None
    assert bound[0] is X


class Subclass(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    "x",
    [
        X.astype(np.float64), X.astype(">f4"), X.astype(np.int32), X.reshape(3, 2), X.ravel(), X[:1], X[None],
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2], np.asfortranarray(X), X.view(Subclass),
        np.ma.masked_array(X), np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32).reshape(2, 3),
        X.tolist(), None, object(),
    ],
    ids=lambda x: f"{type(x).__name__} {getattr(x, 'dtype', '')} {getattr(x, 'shape', '')} {getattr(x, 'strides', '')}",
)  # fmt: skip
def test_an_array_of_another_form_is_left_to_the_checks(x: Any) -> None:
    runner = two_copies()
    assert runner.bind(INDEX, [X, Y], {"x": x}) is None
    assert runner.bind(INDEX, [X, Y], [x, Y]) is None
    assert runner.bind(INDEX, [x, Y], None) is None


@pytest.mark.parametrize(
    "given", [X, [X], (X, Y, Y), [], {"z": X}, {0: X}, {"x": X, 0: X}, {("x",): X}, {b"x": X}, "x", iter([X, Y])],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_inputs_in_another_form_are_left_to_the_checks(given: object) -> None:
    assert two_copies().bind(INDEX, [X, Y], given) is None


def test_a_runner_for_another_number_of_tensors_is_refused() -> None:
    builder = PlanBuilder()
    source, target = builder.add_input(24, 4), builder.add_output(24, 4)
    builder.add_step("copy", [source], [target])
    plan = builder.build()
    with pytest.raises(PlanError, match="the plan has 1 inputs and 1 outputs; 2 and 0 are described"):
        PlanRunner(plan, [(F32, (2, 3)), (F32, (6,))], [])


def test_outputs_are_new_arrays_each_time() -> None:
    runner, flag = two_copies(), CancelFlag()
    first = runner.run([X, Y], flag)
    again = runner.run([X * 2, Y * 2], flag)
    for outputs, factor in ((first, 1), (again, 2)):
        np.testing.assert_array_equal(outputs[0], X * factor)
        np.testing.assert_array_equal(outputs[1], Y * factor)
    assert [output.shape for output in first] == [(2, 3), (6,)]
    assert first[0].flags.owndata
    assert first[0].flags.writeable


def test_given_arrays_are_filled_and_a_profile_is_made_when_asked_for() -> None:
    runner, flag = two_copies(), CancelFlag()
    outputs = [np.zeros_like(X), np.zeros_like(Y)]
    assert runner.fill([X, Y], outputs, flag) is None
    np.testing.assert_array_equal(outputs[0], X)
    np.testing.assert_array_equal(outputs[1], Y)
    durations = runner.fill([X, Y], outputs, flag, profile=True)
    assert durations is not None
    assert len(durations) == 2


def test_an_array_that_shrank_after_it_was_bound_is_not_read() -> None:
    runner, flag = two_copies(1 << 10), CancelFlag()
    x = np.ones((2, 1 << 9), np.float32)
    y = np.ones(1 << 10, np.float32)
    bound = runner.bind(INDEX, [x, y], None)
    assert bound is not None
    runner.run(bound, flag)
    x.resize((1, 1), refcheck=False)
    assert runner.bind(INDEX, bound, None) is None
    with pytest.raises(InputError, match="input 0 has 4 bytes; expected 4096"):
        runner.run(bound, flag)
    np.testing.assert_array_equal(runner.run([np.ones((2, 1 << 9), np.float32), y], flag)[1], y)


def test_a_cancelled_run_says_so_and_the_next_one_runs() -> None:
    runner, flag = two_copies(), CancelFlag()
    for _ in range(3):  # the first run releases the GIL, and later ones, which are short, may keep it
        flag.cancel()
        with pytest.raises(Cancelled):
            runner.run([X, Y], flag)
        flag.reset()
        np.testing.assert_array_equal(runner.run([X, Y], flag)[0], X)


@pytest.mark.parametrize("length", [6, 1 << 18])
def test_threads_share_a_runner_and_keep_their_results_apart(length: int) -> None:
    runner, ready = two_copies(length), threading.Barrier(4)

    def stream(seed: int) -> bool:
        rng, flag = np.random.default_rng(seed), CancelFlag()
        x, y = rng.random((2, length // 2), np.float32), rng.random(length, np.float32)
        ready.wait()
        results = [runner.run([x, y], flag) for _ in range(20)]
        return all(np.array_equal(result[0], x) and np.array_equal(result[1], y) for result in results)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(stream, range(4)))
