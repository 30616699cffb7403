"""Data errors that kernels report: indices and lengths out of range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine_opencl.plan import Fault


class Faults:
    """The fault numbers that the kernels of a context write, on the device and the host; see `LaunchPlan.faults`.

    Not thread-safe.

    Args:
        found: [faults] int64, all zero; the host memory of the numbers.
    """

    def __init__(self, context: Any, faults: Sequence[Fault], found: NDArray[np.int64]) -> None:
        import pyopencl as cl

        self._faults = faults
        self._found = found
        self._fetched: Any = None
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.memory = cl.Buffer(context, flags, hostbuf=np.zeros_like(found))
        self.is_clear = True
        """Whether the numbers are zero; False after an inference that ended early."""

    def begin(self, queue: Any) -> None:
        """Clear numbers left by a previous inference, before the kernels run."""
        import pyopencl as cl

        if not self.is_clear:
            self._found[:] = 0
            cl.enqueue_copy(queue, self.memory, self._found, is_blocking=True)
            self.is_clear = True

    def fetch(self, queue: Any) -> None:
        """Enqueue fetching the numbers, after the kernels."""
        import pyopencl as cl

        self._fetched = cl.enqueue_copy(queue, self._found, self.memory, is_blocking=False)

    def wait(self) -> None:
        """Wait until the numbers are fetched."""
        self._fetched.wait()

    def check(self) -> None:
        """Raise `InputError` if a kernel found an index or a length out of range."""
        for fault, found in zip(self._faults, self._found.tolist(), strict=True):
            if found:
                self.is_clear = False
                raise InputError(f"{fault.op_type} `{fault.node}`: {_description(fault, found - (found > 0))}")


def _description(fault: Fault, found: int) -> str:
    length = fault.length
    if fault.is_length:
        return f"a sequence length {found} is out of range for sequences of {length} steps; expected 0..{length}"
    least = -length if fault.is_signed else 0
    return f"index {found} is out of range for a dimension of {length}; expected {least}..{length - 1}"
