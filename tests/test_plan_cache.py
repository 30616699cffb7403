"""Plans by shape: what is built once, which threads wait for it, and what is evicted.

If this fails, a request whose plan is there waits while another length is compiled, or one error stays for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from engine.lowering import PlanCache, Shapes
from engine.threads import Signal

LIMIT = 60.0
A: Shapes = ((1, 2),)
B: Shapes = ((2, 2),)
C: Shapes = ((3, 2), None)


class Builder:
    """Builds texts; what is in `held` waits for `go_on`, and what is in `errors` is raised."""

    def __init__(self, *held: Shapes) -> None:
        self.held = set(held)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.errors: dict[Shapes, BaseException] = {}
        self.built: list[Shapes] = []

    def __call__(self, shapes: Shapes) -> str:
        self.built.append(shapes)
        if shapes in self.held:
            self.begun.set()
            assert self.go_on.wait(LIMIT)
        if shapes in self.errors:
            raise self.errors[shapes]
        return f"plan of {shapes} number {len(self.built)}"


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released by each thread that begins to wait for a plan which another builds."""
    semaphore = threading.Semaphore(0)

    class Waiting(Signal):
        __slots__ = ()

        def wait_for(self, found: Callable[[], Any], timeout: float | None = None) -> Any:
            semaphore.release()
            return super().wait_for(found, timeout)

    monkeypatch.setattr("engine.lowering.plan_cache.Signal", Waiting)
    return semaphore


def test_a_plan_is_built_once_and_the_last_are_kept() -> None:
    builder, dropped = Builder(), list[str]()
    cache = PlanCache(builder, 2, dropped.append)
    plans = {shapes: cache.get(shapes) for shapes in (A, B)}
    assert cache.get(A) is plans[A]  # now B is the one that was used longest ago
    assert dropped == []
    newest = cache.get(C)
    assert dropped == [plans[B]]
    assert cache.plans() == [plans[A], newest]
    assert builder.built == [A, B, C]
    assert cache.get(B) != plans[B]
    assert builder.built == [A, B, C, B]


def test_a_plan_that_is_found_otherwise_counts_as_used() -> None:
    builder = Builder()
    cache = PlanCache(builder, 2)
    first, second = cache.get(A), cache.get(B)
    cache.touch(first)
    assert cache.plans() == [second, first]
    assert cache.cached(B) is second
    assert cache.plans() == [first, second]
    cache.touch("not cached")
    assert cache.cached(C) is None
    assert builder.built == [A, B]


def test_a_plan_that_is_kept_is_found_while_another_is_built() -> None:
    builder = Builder(B)
    cache = PlanCache(builder, 4)
    kept = cache.get(A)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(cache.get, B)
        assert builder.begun.wait(LIMIT)
        try:
            assert threads.submit(cache.get, A).result(LIMIT) is kept
            assert cache.plans() == [kept]
        finally:
            builder.go_on.set()
        assert slow.result(LIMIT) == cache.get(B)


def waiting(
    cache: PlanCache[Shapes, str], builder: Builder, arrived: threading.Semaphore, threads: ThreadPoolExecutor
) -> list[Future[str]]:
    """Three threads that want B; the first builds it while the others wait."""
    futures = [threads.submit(cache.get, B) for _ in range(3)]
    assert builder.begun.wait(LIMIT)
    for _ in range(2):
        assert arrived.acquire(timeout=LIMIT)
    return futures


def test_who_needs_what_is_being_built_waits_for_it(arrived: threading.Semaphore) -> None:
    builder = Builder(B)
    cache = PlanCache(builder, 1)
    with ThreadPoolExecutor(3) as threads:
        futures = waiting(cache, builder, arrived, threads)
        builder.go_on.set()
        first, *others = [future.result(LIMIT) for future in futures]
    assert all(other is first for other in others)
    assert builder.built == [B]


def test_an_error_reaches_everybody_who_waits_and_is_not_kept(arrived: threading.Semaphore) -> None:
    builder = Builder(B)
    builder.errors[B] = ValueError("no such kernel")
    cache = PlanCache(builder, 1)
    with ThreadPoolExecutor(3) as threads:
        futures = waiting(cache, builder, arrived, threads)
        builder.go_on.set()
        assert [type(future.exception(LIMIT)) for future in futures] == [ValueError] * 3
    assert builder.built == [B]
    assert cache.plans() == []
    builder.errors.clear()
    assert cache.get(B) == cache.plans()[0]


def test_an_interrupted_build_is_taken_up_by_who_waits(arrived: threading.Semaphore) -> None:
    """Ctrl-C is meant for the thread that it hits."""
    builder = Builder(B)
    builder.errors[B] = KeyboardInterrupt()
    cache = PlanCache(builder, 1)

    def build_first() -> str:
        with pytest.raises(KeyboardInterrupt):
            cache.get(B)
        return "interrupted"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(build_first)
        assert builder.begun.wait(LIMIT)
        second = threads.submit(cache.get, B)
        assert arrived.acquire(timeout=LIMIT)
        builder.held.clear()
        builder.errors = _Once(builder.errors)
        builder.go_on.set()
        assert first.result(LIMIT) == "interrupted"
        assert second.result(LIMIT) == "plan of ((2, 2),) number 2"


class _Once(dict[Shapes, BaseException]):
    """Errors that are raised once."""

    def __getitem__(self, key: Shapes) -> BaseException:
        return self.pop(key)


def in_child(check: Callable[[], bool]) -> bool:
    """The result of `check` in a forked process, which ends after it."""
    child = os.fork()
    if not child:
        signalled = 1
        try:
            signalled = 0 if check() else 1
        finally:
            os._exit(signalled)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_during_a_build_leaves_a_usable_cache_in_the_child() -> None:
    """The child does not have the thread that builds, so the build that it began never ends there."""
    builder = Builder(B)
    cache = PlanCache(builder, 4)
    kept = cache.get(A)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(cache.get, B)
        assert builder.begun.wait(LIMIT)

        def check() -> bool:
            builder.held.clear()
            return cache.get(A) is kept and cache.get(B).endswith("number 3") and len(cache.plans()) == 2

        try:
            assert in_child(check)
        finally:
            builder.go_on.set()
        assert slow.result(LIMIT).endswith("number 2")


class InterruptedKey:
    """A key in whose `left`-th hash or comparison Ctrl-C comes."""

    left = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        InterruptedKey.left -= 1
        if InterruptedKey.left == 0:
            raise KeyboardInterrupt
        return self.number % 2

    def __eq__(self, other: object) -> bool:
        return hash(self) >= 0 and isinstance(other, InterruptedKey) and self.number == other.number


def test_a_cache_is_whole_wherever_it_was_interrupted() -> None:
    place, was_interrupted = 1, True
    while was_interrupted:
        cache: PlanCache[InterruptedKey, int] = PlanCache(lambda key: key.number, 2)
        for number in (0, 1):
            cache.get(InterruptedKey(number))
        InterruptedKey.left = place
        try:
            for number in (1, 2, 4):
                cache.get(InterruptedKey(number))
            was_interrupted = False
        except KeyboardInterrupt:
            was_interrupted = True
        InterruptedKey.left = 0
        for number in (2, 0, 1, 0, 4):
            assert cache.get(InterruptedKey(number)) == number, f"place {place}"
            assert cache.plans()[-1] == number, f"place {place}"
        cache.get(InterruptedKey(6))
        assert len(cache.plans()) == 2, f"place {place}"  # the next eviction removes what an interrupted one has left
        place += 1
    assert place > 10
