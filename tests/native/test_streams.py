"""Several threads, processes and cancellations: nothing may hang, mix results up or take the whole machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine.errors import Busy, Cancelled
from engine.native import CancelFlag, Context, Plan, PlanBuilder, cores, started_threads

Array = np.ndarray[Any, np.dtype[Any]]
LONG = 1_000  # steps; each is a moment in which a run can be cancelled


def chain(length: int, nbytes: int) -> Plan:
    builder = PlanBuilder()
    last = builder.add_input(nbytes)
    for index in range(length):
        following = builder.add_output(nbytes) if index + 1 == length else builder.add_buffer(nbytes)
        builder.add_step("copy", [last], [following])
        last = following
    return builder.build()


def test_streams_share_a_plan_and_keep_their_results_apart() -> None:
    plan = chain(20, 1 << 17)

    def stream(seed: int) -> bool:
        context = Context(plan)
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.integers(0, 255, 1 << 17, np.uint8)
            y = np.empty_like(x)
            context.run([x], [y], threads=1 + seed % 3)
            if not np.array_equal(x, y):
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(stream, range(6)))
    assert started_threads() < cores()


def test_a_thread_limit_holds_whatever_the_machine_has() -> None:
    context = Context(chain(3, 1 << 20), max_threads=1)
    assert context.max_workers == 1
    assert Context(chain(3, 1 << 20), max_threads=10_000).max_workers <= cores()
    assert Context(chain(3, 64)).max_workers == 1, "steps of 64 bytes have work for one"


def test_contexts_in_turns_compute_in_one_memory() -> None:
    """Candidates for a step are measured so: each with memory of its own would multiply what a compilation takes."""
    plans = [chain(3, 1 << 20), chain(3, 64), chain(4, 1 << 16)]
    contexts = Context.in_turns(plans)
    for _ in range(2):
        for plan, context in zip(plans, contexts, strict=True):
            x = np.random.default_rng(plan.inputs[0]).integers(0, 255, plan.inputs[0], np.uint8)
            y = np.empty_like(x)
            context.run([x], [y])
            np.testing.assert_array_equal(x, y)
    assert Context.in_turns([]) == []


def test_contexts_in_turns_do_not_run_at_once() -> None:
    one, other = Context.in_turns([chain(LONG, 1 << 20), chain(2, 64)])
    flag = CancelFlag()
    thread, _ = running(one, np.ones(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8), flag)
    with pytest.raises(Busy, match="running in another thread"):
        run_often(other, np.ones(64, np.uint8), np.zeros(64, np.uint8))
    flag.cancel()
    thread.join(60)
    assert not thread.is_alive()


def running(context: Context, x: Array, y: Array, flag: CancelFlag) -> tuple[threading.Thread, list[object]]:
    """Run in another thread; return it with the list that takes the outcome."""
    outcome: list[object] = []

    def run() -> None:
        while not outcome:
            try:
                context.run([x], [y], cancel=flag)
            except Busy:
                continue
            except Cancelled as error:
                outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_a_run_is_cancelled_between_steps_and_the_context_can_be_used_again() -> None:
    context, flag = Context(chain(LONG, 1 << 18)), CancelFlag()
    x, y = np.ones(1 << 18, np.uint8), np.zeros(1 << 18, np.uint8)
    thread, outcome = running(context, x, y, flag)
    flag.cancel()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], Cancelled)
    with pytest.raises(Cancelled):
        context.run([x], [y], cancel=flag)
    flag.reset()
    context.run([x], [y], cancel=flag)
    np.testing.assert_array_equal(x, y)


def run_often(context: Context, x: Array, y: Array) -> None:
    for _ in range(100_000):
        context.run([x], [y])


def test_a_context_that_runs_is_busy_for_others() -> None:
    context, flag = Context(chain(LONG, 1 << 20)), CancelFlag()
    x, y = np.ones(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    thread, _ = running(context, x, y, flag)
    mine = np.zeros_like(x)
    # Only with the GIL released can this thread find the other one inside a run.
    with pytest.raises(Busy, match="running in another thread"):
        run_often(context, x, mine)
    flag.cancel()
    thread.join(60)
    assert not thread.is_alive()


FORKED = """
import os, sys
import numpy as np
from engine.native import Context, PlanBuilder
builder = PlanBuilder()
builder.add_step("copy", [builder.add_input(1 << 20)], [builder.add_output(1 << 20)])
context = Context(builder.build())
x = np.arange(1 << 20, dtype=np.uint8)
def run():
    y = np.zeros_like(x)
    context.run([x], [y])
    return np.array_equal(x, y)
assert run()
child = os.fork()
if child == 0:
    os._exit(0 if run() else 1)
assert os.waitpid(child, 0)[1] == 0
assert run()
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_runs_plans_with_threads_of_its_own() -> None:
    # A process of its own: this one has threads of the test runner, and a fork of it would warn.
    result = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.returncode) == ("ok\n", 0), result.stderr
