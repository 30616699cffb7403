"""`NamedLocks`: operations on one name run one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class NamedLocks:
    """A lock for each name, kept only while it is in use, since clients can send any name. Used by one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """Each lock, with the number of its holders and waiters."""

    def __len__(self) -> int:
        return len(self._locks)

    def is_held(self, name: str) -> bool:
        """Whether an operation on the name runs or waits."""
        return name in self._locks

    @contextlib.asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait until the name is not held, and hold it during the block."""
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = (lock, users - 1)
