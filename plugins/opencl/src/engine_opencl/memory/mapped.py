"""`MappedArena`: host memory with explicit synchronization of host and device caches.

Mapping and unmapping synchronize; on devices that use host memory, neither copies data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.memory.arena import Arena
from engine_opencl.memory.mapping import MappedBytes
from engine_opencl.plan import Buffer, LaunchPlan


class MappedArena(Arena):
    """Inputs and outputs are mapped, each for as long as the thread of the request copies it."""

    reads_in_place = True

    def __init__(self, device: OpenclDevice, plan: LaunchPlan, queue: Any, *, profiling: bool) -> None:
        self._upload = device.new_queue(profiling=profiling)
        super().__init__(device, plan, queue, profiling=profiling)
        self._outputs: dict[Buffer, MappedBytes] = {}
        self._unmapped: list[Any] = []

    def _allocate(self, plan: LaunchPlan) -> None:
        flags, nbytes = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.ALLOC_HOST_PTR, max(plan.arena_bytes, 1)
        with self._allocation(nbytes):
            self._memory = self._cl.Buffer(self._device.context, flags, nbytes)

    def upload(self, given: Sequence[tuple[Buffer, NDArray[np.uint8]]]) -> None:
        """Copy into mapped memory; the events belong to unmapping it."""
        flag = self._cl.map_flags.WRITE_INVALIDATE_REGION
        for buffer, value in given:
            begun = time.perf_counter_ns()
            # An input may use memory in which an output of the previous inference is still mapped.
            mapped = MappedBytes(self._upload, self.part(buffer), flag, value.size, wait_for=self._unmapped)
            mapped.view[:] = value
            self.uploads.append(mapped.unmap(self._upload))
            self.copied.append((begun, time.perf_counter_ns()))
        self._upload.flush()

    def fetch(self, written: Sequence[Buffer]) -> None:
        """Map the outputs for reading after all kernels; does not wait for them."""
        flag, queue = self._cl.map_flags.READ, self._queue
        for buffer in written:
            self._outputs[buffer] = MappedBytes(queue, self.part(buffer), flag, buffer.byte_size, is_blocking=False)

    def take(self, buffer: Buffer, target: NDArray[np.uint8]) -> None:
        """Wait until the output is mapped, and copy it."""
        mapped = self._outputs[buffer]
        mapped.event.wait()
        target[:] = mapped.view[: target.size]

    def release(self) -> None:
        """Unmap outputs, before the kernels of the next inference."""
        self._unmapped = []
        for mapped in self._outputs.values():
            mapped.event.wait()  # an empty output is never taken
            self._unmapped.append(mapped.unmap(self._queue))
        if self._unmapped:
            self._queue.flush()
        self._outputs.clear()

    def finish(self) -> None:
        """Wait for inputs that are being unmapped."""
        self._upload.finish()

    def close(self) -> None:
        """Also unmap outputs that are mapped."""
        self._unmapped = []
        while self._outputs:
            self._outputs.popitem()[1].unmap(self._queue)
        self._queue.finish()
        super().close()
