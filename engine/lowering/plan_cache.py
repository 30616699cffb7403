"""`PlanCache`: the plans of a network with dynamic shapes, one for each recent set of input shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.threads import Signal

KeyT = TypeVar("KeyT", bound=Hashable)
PlanT = TypeVar("PlanT")


class PlanCache(Participant, Generic[KeyT, PlanT]):
    """Builds a plan when its key, such as the input shapes, is first used, and keeps the last `size` plans.

    Thread-safe. A cached plan is returned without waiting. Plans are built one at a time, because builders share
    weights and choices of kernels, so a caller that needs a new plan waits for the build in progress. An error is
    raised in every thread that waits for that plan and is not cached: later calls build again. After a fork, a plan
    that another thread of the parent was building is built again in the child.
    """

    def __init__(
        self,
        build: Callable[[KeyT], PlanT],
        size: int,
        dropped: Callable[[PlanT], None] | None = None,
        building: ForkSafeLock | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            build: builds the plan of a key.
            size: the maximum number of cached plans.
            dropped: called with each evicted plan; inferences may still run it.
            building: held while a plan is built; caches whose builders share state that is not thread-safe share the
                lock.
        """
        self._build = build
        self._size = size
        self._dropped = dropped
        # Not an OrderedDict: Ctrl-C in the `__hash__` or `__eq__` of a key would leave it inconsistent forever.
        self._plans: dict[KeyT, PlanT] = {}
        self._pending: dict[KeyT, _Pending[PlanT]] = {}
        self._lock = ForkSafeLock()
        """Guards the two tables; held only briefly."""
        self._changed = Signal(self._lock)
        self._building = building or ForkSafeLock()
        """Never acquired while `_lock` is held."""
        lifecycle.track(self)

    def get(self, key: KeyT) -> PlanT:
        """The plan of a key, built if it is not cached. Raises whatever the builder raises."""
        while True:
            made: _Pending[PlanT] | None = None
            try:
                with self._lock:
                    if key in self._plans:
                        return self._used(key)
                    pending = self._pending.get(key)
                    if pending is None:
                        made = pending = _Pending()
                        self._pending[key] = made
                if made is not None:
                    return self._built(key, made)
            finally:
                if made is not None and not made.has_ended:  # interrupted
                    self._end(key, made)
            self._changed.wait_for(lambda each=pending: each.has_ended)  # type: ignore[misc]
            if pending.error is not None:
                raise pending.error
            if pending.plan is not None:
                return pending.plan
            # The thread that was building it was interrupted.

    def cached(self, key: KeyT) -> PlanT | None:
        """The plan of a key, if it is cached."""
        with self._lock:
            return self._used(key) if key in self._plans else None

    def touch(self, plan: PlanT) -> None:
        """Make a cached plan the most recently used one, for callers that found it among `plans`."""
        with self._lock:
            key = next((key for key, known in reversed(self._plans.items()) if known is plan), None)
            if key is not None:
                self._used(key)

    def plans(self) -> list[PlanT]:
        """The cached plans, the most recently used one last."""
        with self._lock:
            return list(self._plans.values())

    def clear(self) -> None:
        """Drop all cached plans; inferences may still run them."""
        with self._lock:
            dropped, self._plans = list(self._plans.values()), {}
        if self._dropped is not None:
            for each in dropped:
                self._dropped(each)

    def _built(self, key: KeyT, pending: _Pending[PlanT]) -> PlanT:
        try:
            with self._building:
                pending.plan = plan = self._build(key)
        except Exception as e:
            pending.error = e
            raise
        finally:
            dropped = self._end(key, pending)
        if self._dropped is not None:
            for each in dropped:
                self._dropped(each)
        return plan

    def _end(self, key: KeyT, pending: _Pending[PlanT]) -> list[PlanT]:
        """Wake the threads that wait for a build, whose plan is cached if there is one; returns the plans evicted for
        it.
        """
        with self._lock:
            self._pending.pop(key, None)
            dropped = [] if pending.plan is None else self._kept(key, pending.plan)
            pending.has_ended = True
            self._changed.notify_all()
            return dropped

    def _used(self, key: KeyT) -> PlanT:
        """Make a cached plan the most recently used one. Called with the lock held."""
        plan = self._plans.pop(key)
        self._plans[key] = plan
        return plan

    def _kept(self, key: KeyT, plan: PlanT) -> list[PlanT]:
        """Cache a plan; returns the plans evicted for it."""
        self._plans.pop(key, None)
        self._plans[key] = plan
        return [self._plans.pop(next(iter(self._plans))) for _ in range(len(self._plans) - self._size)]

    def _after_fork(self) -> None:
        self._pending.clear()
        self._changed = Signal(self._lock)


class _Pending(Generic[PlanT]):
    """A plan that is being built; if it ends with neither plan nor error, the builder was interrupted."""

    __slots__ = ("error", "has_ended", "plan")

    def __init__(self) -> None:
        self.has_ended = False
        self.plan: PlanT | None = None
        self.error: Exception | None = None
