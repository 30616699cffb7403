"""`SharedArena`: memory in which the host and kernels see each other's writes without mapping.

Fine-grained shared virtual memory (OpenCL 3.0, 3.3.3): writes of a kernel are visible to the host once an event after
it has completed, and writes of the host are visible to kernels enqueued later. A CPU's queues share its threads, so
that a copy by a queue would wait for the kernels of other inferences.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine_opencl.memory.arena import Arena
from engine_opencl.plan import Buffer, LaunchPlan


class SharedArena(Arena):
    """Inputs and outputs are copied by the thread of the request, not by a queue."""

    reads_in_place = True
    _host: NDArray[np.uint8]

    def _allocate(self, plan: LaunchPlan) -> None:
        nbytes = max(plan.arena_bytes, 1)
        with self._allocation(nbytes):
            self._host = self._cl.fsvm_empty(self._device.context, nbytes, np.uint8)
            flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.USE_HOST_PTR
            self._memory = self._cl.Buffer(self._device.context, flags, hostbuf=self._host)

    def upload(self, given: Sequence[tuple[Buffer, NDArray[np.uint8]]]) -> None:
        """Copy to where the kernels read it."""
        for buffer, value in given:
            begun = time.perf_counter_ns()
            self._view(buffer)[: value.size] = value
            self.copied.append((begun, time.perf_counter_ns()))

    def fetch(self, written: Sequence[Buffer]) -> None:
        """Nothing to do: the host can read the memory."""

    def take(self, buffer: Buffer, target: NDArray[np.uint8]) -> None:
        """Copy from where the kernels wrote it."""
        target[:] = self._view(buffer)[: target.size]

    def _view(self, buffer: Buffer) -> NDArray[np.uint8]:
        return self._host[buffer.offset : buffer.offset + buffer.byte_size]
