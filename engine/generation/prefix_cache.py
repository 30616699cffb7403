"""`PrefixCache`: the keys and values of earlier sequences, for prompts that begin with the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfMemoryError
from engine.generation.adapter import Adapter
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.startup import dataclass

Array = NDArray[Any]

LEAST_TOKENS: Final = 16
"""The shortest prefix that is taken: computing fewer tokens takes about as long as copying them."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A sequence: its tokens, its adapter, which changes keys and values, and the request whose variables have it."""

    tokens: Array
    adapter: Adapter | None
    request: AsyncInferRequest
    nbytes: int


class PrefixCache:
    """Sequences by their tokens, the least recently used ones first to leave.

    A sequence that begins with another one replaces it, as a longer prefix also serves for a shorter one. If variables
    are replaced rather than grow, such as a window of keys, a sequence serves only as a whole.

    Args:
        network: makes the requests that have the sequences.
        max_bytes: the most bytes that all of them take; 0 for none.
    """

    def __init__(self, network: ExecutableNetwork, max_bytes: int) -> None:
        self._network, self._max_bytes = network, max_bytes
        self._can_shorten = all(variable.is_growing for variable in network.variables)
        self._entries: list[_Entry] = []

    @property
    def nbytes(self) -> int:
        """The bytes of all sequences."""
        return sum(entry.nbytes for entry in self._entries)

    def clear(self) -> bool:
        """Remove all; returns whether there were any."""
        had, self._entries = bool(self._entries), []
        return had

    def take(self, prompt: Sequence[int], adapter: Adapter | None = None) -> tuple[AsyncInferRequest, int]:
        """A request with the keys and values of the longest known prefix of a prompt, computed with the same adapter,
        and the length of the prefix, at least 16 or 0; at least the last token is left to be computed.
        """
        found = self._longest(np.array(prompt[:-1]), adapter) if self._entries else None
        if found is None:
            return self._network.create_infer_request(), 0
        entry, count = found
        self._entries.remove(entry)
        self._entries.append(entry)
        request = entry.request.fork()
        if count < len(entry.tokens):
            request.rewind(len(entry.tokens) - count)
        return request, count

    def _longest(self, prompt: Array, adapter: Adapter | None) -> tuple[_Entry, int] | None:
        best = None
        for entry in self._entries:
            if entry.adapter is not adapter:
                continue
            count = _common(entry.tokens, prompt)
            is_whole = self._can_shorten or count == len(entry.tokens)
            if is_whole and count >= (LEAST_TOKENS if best is None else best[1] + 1):
                best = entry, count
        return best

    def store(
        self,
        tokens: Sequence[int],
        request: AsyncInferRequest,
        row: int,
        nbytes: int,
        adapter: Adapter | None = None,
    ) -> None:
        """Copy a sequence of a request, which takes `nbytes`; the values of its tokens are the last ones of its row.

        Without memory for the copy, the cache is emptied.
        """
        key = np.array(tokens)
        if nbytes > self._max_bytes or len(key) < LEAST_TOKENS:
            return
        common = [_common(entry.tokens, key) if entry.adapter is adapter else -1 for entry in self._entries]
        if any(
            count == len(key) and (self._can_shorten or len(entry.tokens) == len(key))
            for entry, count in zip(self._entries, common, strict=True)
        ):
            return
        if self._can_shorten:
            pairs = zip(self._entries, common, strict=True)
            self._entries = [entry for entry, count in pairs if count < len(entry.tokens)]
        while self.nbytes + nbytes > self._max_bytes:
            del self._entries[0]
        made = self._network.create_infer_request()
        try:
            made.gather([(request, row, len(key))], has_room=False)
        except (MemoryError, OutOfMemoryError):
            self.clear()
            return
        self._entries.append(_Entry(key, adapter, made, nbytes))


def _common(left: Array, right: Array) -> int:
    """How many elements are equal at the beginning of both."""
    count = min(len(left), len(right))
    different = left[:count] != right[:count]
    return int(different.argmax()) if different.any() else count
