"""`MappedBytes`: a buffer's memory while the host may access it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MappedBytes:
    """Bytes of a buffer, mapped until `unmap`, or until the object is freed.

    pyopencl unmaps in a destructor, where an error of a lost device would terminate the process: here it is unmapped
    earlier, and an object that cannot be unmapped is never destroyed.
    """

    view: NDArray[np.uint8]
    _mapped: Any = None

    def __init__(
        self,
        queue: Any,
        buffer: Any,
        flags: Any,
        nbytes: int,
        *,
        wait_for: Sequence[Any] = (),
        is_blocking: bool = True,
    ) -> None:
        import pyopencl as cl

        made: Any = cl.enqueue_map_buffer(
            queue, buffer, flags, 0, (nbytes,), np.dtype(np.uint8), wait_for=wait_for, is_blocking=is_blocking
        )
        self.view, self.event = made
        self._mapped = self.view.base

    def unmap(self, queue: Any = None) -> Any:
        """Enqueue unmapping, by default on the queue that mapped it; returns the event. Raises errors of pyopencl."""
        mapped, self._mapped = self._mapped, None
        try:
            return mapped.release(queue)
        except Exception:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapped))
            raise

    def __del__(self) -> None:
        if self._mapped is not None:
            # The object is leaked on purpose, and a finalizer cannot report an error.
            with contextlib.suppress(Exception):
                self.unmap()
