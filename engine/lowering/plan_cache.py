"""`PlanCache`: the plans of a network with unknown lengths, one for each set of input shapes that came lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Event
from typing import Generic, TypeVar

from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle

KeyT = TypeVar("KeyT", bound=Hashable)
PlanT = TypeVar("PlanT")


class PlanCache(Participant, Generic[KeyT, PlanT]):
    """Builds a plan when its key, such as the shapes of the inputs, first comes, and keeps the last `size`.

    Thread-safe. Plans that are kept are found at any time: only who needs a plan that is being built waits for it,
    or who needs another new one, as one is built at a time (builders share weights and choices of kernels). An error
    reaches everybody who waits for that plan, and is not kept: who comes later builds again. In a process that was
    forked, what another thread of the parent was building is built anew.
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
            build: makes the plan of a key.
            size: how many plans are kept.
            dropped: called with each plan that is kept no longer; inferences may still run it.
            building: held while a plan is built; caches whose builders share what is not thread-safe share the lock.
        """
        self._build = build
        self._size = size
        self._dropped = dropped
        self._plans: OrderedDict[KeyT, PlanT] = OrderedDict()
        self._pending: dict[KeyT, _Pending[PlanT]] = {}
        self._lock = ForkSafeLock()
        """Of the two tables; held for moments alone."""
        self._building = building or ForkSafeLock()
        """Never taken by who holds `_lock`."""
        lifecycle.track(self)

    def get(self, key: KeyT) -> PlanT:
        """The plan of a key, built where it is not kept. Raises what building raises."""
        while True:
            with self._lock:
                if key in self._plans:
                    self._plans.move_to_end(key)
                    return self._plans[key]
                pending = self._pending.get(key)
                is_new = pending is None
                if pending is None:
                    pending = self._pending[key] = _Pending()
            if is_new:
                return self._built(key, pending)
            pending.ended.wait()
            if pending.error is not None:
                raise pending.error
            if pending.plan is not None:
                return pending.plan
            # Who was building it was interrupted.

    def plans(self) -> list[PlanT]:
        """Those that are kept now, the one that was used last at the end."""
        with self._lock:
            return list(self._plans.values())

    def _built(self, key: KeyT, pending: _Pending[PlanT]) -> PlanT:
        try:
            with self._building:
                pending.plan = plan = self._build(key)
        except Exception as e:
            pending.error = e
            raise
        finally:
            with self._lock:
                self._pending.pop(key, None)
                dropped = [] if pending.plan is None else self._kept(key, pending.plan)
            pending.ended.set()
        if self._dropped is not None:
            for each in dropped:
                self._dropped(each)
        return plan

    def _kept(self, key: KeyT, plan: PlanT) -> list[PlanT]:
        """Keep a plan; those that have to go for it."""
        self._plans[key] = plan
        return [self._plans.popitem(last=False)[1] for _ in range(len(self._plans) - self._size)]

    def _after_fork(self) -> None:
        self._pending.clear()


class _Pending(Generic[PlanT]):
    """A plan that is being built; with neither plan nor error at the end, whoever built it was interrupted."""

    __slots__ = ("ended", "error", "plan")

    def __init__(self) -> None:
        self.ended = Event()
        self.plan: PlanT | None = None
        self.error: Exception | None = None
