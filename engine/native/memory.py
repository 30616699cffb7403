"""Memory for weights: aligned to cache lines, and in huge pages to avoid TLB misses."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

_LINE: Final = 64
_HUGE_PAGE: Final = 2 << 20
_CHUNK: Final = 32 << 20
_SHARED: Final = 4 << 20
_SMALL: Final = 1 << 20


def empty_aligned(nbytes: int) -> Array:
    """Return uninitialised bytes aligned to a cache line."""
    import numpy as np

    block: Array = np.empty(nbytes + _LINE, np.uint8)
    start = -block.ctypes.data % _LINE
    return block[start : start + nbytes]


class WeightMemory:
    """Allocates long-lived memory, in huge pages if the system has them. Thread-safe.

    Weights are read front to back once per inference. With pages of 4 KiB, a network of 100 MB uses more pages than
    the processor's TLB holds, and hardware prefetchers stop at the end of each page.

    Arrays of a few huge pages share a chunk, which is freed with the last of them; smaller arrays are ordinary.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[Array] | None = None
        self._used = 0

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes aligned to a cache line. Raises MemoryError."""
        if nbytes < _SMALL:
            return empty_aligned(nbytes)
        if nbytes > _SHARED:
            return _huge_block(nbytes)
        with self._lock:
            chunk = self._chunk() if self._chunk is not None else None
            if chunk is None or self._used + nbytes > chunk.nbytes:
                chunk = _huge_block(_CHUNK)
                self._chunk, self._used = weakref.ref(chunk), 0
            start = self._used
            self._used += nbytes + -nbytes % _LINE
        return chunk[start : start + nbytes]


def empty_huge(nbytes: int, ranges: Sequence[tuple[int, int]] | None = None) -> Array:
    """Return uninitialised bytes, in huge pages if there are many and the system has them. Raises MemoryError.

    With `ranges`, each the first byte and the one behind the last, only these are in huge pages: a huge page is used as
    a whole by the first byte that is written.
    """
    return empty_aligned(nbytes) if nbytes < _SMALL else _huge_block(nbytes, ranges)


def return_free_memory() -> None:
    """Give memory that was freed back to the system, if the C library keeps it: GNU's keeps blocks of up to 32 MB.

    Takes 15 ms after a network of 100 MB was compiled.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _huge_block(nbytes: int, ranges: Sequence[tuple[int, int]] | None = None) -> Array:
    """A separate mapping, in huge pages as far as whole ones fit and the system grants them."""
    import mmap

    import numpy as np

    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return empty_aligned(nbytes)
    try:
        # Private, because huge pages of shared memory have their own setting, which is off by default.
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"cannot allocate {nbytes} bytes") from error
    start = -np.frombuffer(pages, np.uint8).ctypes.data % _HUGE_PAGE
    with contextlib.suppress(OSError):  # the system has no huge pages
        for first, end in [(0, nbytes)] if ranges is None else ranges:
            first += -first % _HUGE_PAGE
            if (count := (end - first) // _HUGE_PAGE) > 0:
                pages.madvise(mmap.MADV_HUGEPAGE, start + first, count * _HUGE_PAGE)
    return np.frombuffer(pages, np.uint8, nbytes, start)
