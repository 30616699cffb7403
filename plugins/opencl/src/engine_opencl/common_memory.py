"""Devices that compute in the host's memory, such as CPUs: nothing has to be copied by their queues there.

A CPU's queues share its threads: a copy that is enqueued while another inference computes waits for that to end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

POINTER_ALIGNMENT: Final = 16
"""Bytes; what `malloc` gives, and so most of the users' arrays have."""
LEAST_BYTES: Final = 1 << 15
"""Below this, copying an input takes no longer than binding it anew."""


def aligned_bytes(count: int, alignment: int) -> NDArray[np.uint8]:
    """Uninitialised memory that begins at a multiple of `alignment`."""
    memory = np.empty(count + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + count]


def wrapped(context: Any, memory: NDArray[Any], *, read_only: bool = False) -> Any:
    """A buffer in memory of the host, which it keeps alive."""
    import pyopencl as cl

    access = cl.mem_flags.READ_ONLY if read_only else cl.mem_flags.READ_WRITE
    return cl.Buffer(context, access | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)


def is_common(context: Any, handle: Any) -> bool:
    """Whether a CPU's kernels and the host see each other's writes to such buffers at once, as OpenCL lets them.

    It is tried: a driver may as well keep a copy of its own, above all of memory that begins at no round address.
    """
    import pyopencl as cl

    if not handle.type & cl.device_type.CPU or not handle.host_unified_memory:
        return False
    memory = aligned_bytes(4096 + POINTER_ALIGNMENT, 4096)[POINTER_ALIGNMENT:]
    memory[:] = 1
    buffer, queue = wrapped(context, memory), cl.CommandQueue(context, handle)
    memory[:] = 2
    seen = np.zeros_like(memory)
    cl.enqueue_copy(queue, seen, buffer, is_blocking=True)
    cl.enqueue_copy(queue, buffer, np.full_like(memory, 3), is_blocking=True)
    queue.finish()
    return bool((seen == 2).all() and (memory == 3).all())


def can_be_wrapped(value: NDArray[Any]) -> bool:
    """Whether an input is worth, and allows, being read where it is."""
    return value.nbytes >= LEAST_BYTES and value.ctypes.data % POINTER_ALIGNMENT == 0 and value.flags.c_contiguous
