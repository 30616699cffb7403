"""Collects requests into batches: until one is full, or its first request has waited long enough."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeAlias

from engine.errors import EngineError, with_message
from engine.plugin_api import DeviceError, NodeProfile, ThreadExecutor, UnsupportedError
from engine.runtime.deadlines import Deadline, deadline_timer
from engine.runtime.executors import Task
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.runtime.values import Array
from engine_batch.log import logger

Outputs: TypeAlias = list[Array]


class Item:
    """One request in a batch, from its inputs to its outputs or its error.

    Attributes:
        rows: the length of the first dimension of its inputs.
        key: items of one batch have the same key, such as the other lengths of their inputs.
    """

    __slots__ = ("_gate", "error", "group", "inputs", "is_done", "key", "outputs", "profile", "rows", "task")

    def __init__(self, inputs: Sequence[Array], rows: int, key: Hashable) -> None:
        self.inputs, self.rows, self.key = inputs, rows, key
        self.outputs: Outputs | None = None
        self.error: EngineError | None = None
        self.profile: list[NodeProfile] = []
        self.group: Group | None = None
        self.task: Task | None = None
        self.is_done = False
        # Not an event: Ctrl-C while one is waited for may leave it locked.
        self._gate = threading.Lock()
        self._gate.acquire()

    def open(self) -> None:
        """Let `wait` return. Must be called exactly once."""
        self._gate.release()

    def wait(self) -> None:
        """Wait until the item is done."""
        if not self.is_done:
            with self._gate:
                pass


class Group:
    """Items that will be a batch."""

    __slots__ = ("deadline", "items", "key", "rows")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.items: list[Item] = []
        self.rows = 0
        self.deadline: Deadline | None = None


RunBatch: TypeAlias = Callable[[Sequence[Item]], None]
"""Sets outputs and profile of the items, or raises."""


class Collector(Participant):
    """The batches that wait, and the threads that run them. Thread-safe.

    A batch that fails is repeated item by item, so that only the items that cause the failure fail.

    Args:
        rows: of a full batch. An item with more rows is a batch of its own.
        seconds: how long the first item of a batch waits.
        run: runs a batch.
        threads: how many batches run at once.
    """

    def __init__(self, name: str, rows: int, seconds: float, run: RunBatch, threads: int) -> None:
        self.statistics: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()
        self.runs: dict[int, tuple[int, int]] = {}
        """By the rows of a batch: how many have run without an error, and for how many nanoseconds."""
        self._name, self._rows, self._seconds, self._run = name, rows, seconds, run
        self._groups: dict[Hashable, Group] = {}
        self._lock = ForkSafeLock()
        self._executor = ThreadExecutor(f"{name}: batches", threads)
        # Not the same threads: what follows a batch must not keep other batches waiting.
        self._deliveries = ThreadExecutor(f"{name}: results", threads)
        lifecycle.track(self)

    def add(self, item: Item) -> None:
        """Have an item run in a batch. If the system has no more threads, that is the error of the item."""
        with self._lock:
            group = self._groups.get(item.key)
            if group is not None and group.rows + item.rows > self._rows:
                self._start(group)
                group = None
            if group is None:
                group = self._groups[item.key] = Group(item.key)
                if item.rows < self._rows:
                    group.deadline = deadline_timer.call_after(self._seconds, partial(self._time_over, group))
            item.group = group
            group.items.append(item)
            group.rows += item.rows
            if group.rows >= self._rows:
                self._start(group)

    def withdraw(self, item: Item) -> None:
        """End a cancelled item at once, even if its batch runs; the batch's result is then not used for it."""
        with self._lock:
            if item.is_done:
                return
            group = item.group
            if group is not None and self._groups.get(group.key) is group:
                group.items.remove(item)
                group.rows -= item.rows
                if not group.items:
                    self._take_out(group)
            task = self._mark_done(item)
        if task is not None:  # not here: the caller may hold locks that the task takes
            self._deliveries.submit(task)

    def when_done(self, item: Item | None, task: Task) -> None:
        """Call `task` on a thread for results once the item is done; at once if there is none."""
        with self._lock:
            if item is not None and not item.is_done:
                item.task = task
                return
        self._deliveries.submit(task)

    def owns_current_thread(self) -> bool:
        """Whether the current thread runs batches, or what follows them."""
        return self._executor.owns_current_thread() or self._deliveries.owns_current_thread()

    def _time_over(self, group: Group) -> None:
        with self._lock:
            if self._groups.get(group.key) is group:
                self._start(group)

    def _start(self, group: Group) -> None:
        self._take_out(group)
        try:
            self._executor.submit(partial(self._run_group, group))
        except EngineError as e:  # the system has no more threads, and without a thread the items would never end
            for item in group.items:
                item.error = with_message(e, str(e))
                if (task := self._mark_done(item)) is not None:
                    self._deliveries.submit(task)

    def _take_out(self, group: Group) -> None:
        del self._groups[group.key]
        if group.deadline is not None:
            group.deadline.cancel()

    def _run_group(self, group: Group) -> None:
        with self._lock:
            items = [item for item in group.items if not item.is_done]
            if not items:
                return
            self.statistics["full" if group.rows >= self._rows else "partial"] += 1
            self.statistics["requests"] += len(items)
            self.sizes[len(items)] += 1
        error = self._try(items)
        if error is None or len(items) == 1:
            self._finish(items, error)
            return
        if isinstance(error, UnsupportedError):  # an error of the model, not of one of the requests
            for item in items:
                self._finish([item], with_message(error, str(error)))
            return
        logger.warning(
            "%s: a batch of %d requests failed, and is repeated one by one: %s", self._name, len(items), error
        )
        del error
        with self._lock:
            self.statistics["repeated"] += 1
        for item in items:
            if not item.is_done:
                self._finish([item], self._try([item]))

    def _try(self, items: Sequence[Item]) -> EngineError | None:
        begin = time.perf_counter_ns()
        try:
            self._run(items)
        except EngineError as e:
            return e
        except Exception as e:
            error = DeviceError(f"{self._name}: a batch failed: {type(e).__name__}: {e}")
            error.__cause__ = e
            return error
        duration, rows = time.perf_counter_ns() - begin, sum(item.rows for item in items)
        with self._lock:
            count, total = self.runs.get(rows, (0, 0))
            self.runs = self.runs | {rows: (count + 1, total + duration)}  # a new table: others read the old one
        return None

    def _finish(self, items: Sequence[Item], error: EngineError | None) -> None:
        with self._lock:
            for item in items:
                if not item.is_done:
                    item.error = error
            tasks = [self._mark_done(item) for item in items if not item.is_done]
        if any(tasks):
            self._deliveries.submit(partial(_call_all, [task for task in tasks if task is not None]))

    def _mark_done(self, item: Item) -> Task | None:
        item.is_done = True
        item.group = None
        task, item.task = item.task, None
        item.open()
        return task

    def _after_fork(self) -> None:
        """The items belong to inferences that have ended with the parent's threads."""
        self._groups = {}


def _call_all(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()


def split(outputs: Sequence[Any], items: Sequence[Item]) -> None:
    """Give each item its rows of the outputs of a batch, as views."""
    start = 0
    for item in items:
        item.outputs = [output[start : start + item.rows] for output in outputs]
        start += item.rows
