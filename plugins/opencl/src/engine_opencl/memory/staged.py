"""`StagedArena`: device memory, filled and read through page-locked host memory.

A driver moves pageable memory through its own page-locked memory while the caller waits. For memory that it has
allocated (`ALLOC_HOST_PTR`) and that stays mapped, its copy engines run concurrently with kernels and the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.driver_errors import Allocation
from engine_opencl.memory.arena import Arena
from engine_opencl.memory.mapping import MappedBytes
from engine_opencl.plan import Buffer, LaunchPlan

_PIECE_BYTES: Final = 4 << 20
"""The device moves one piece while the host copies the next. A piece takes about 0.2 ms over PCIe, enqueueing it
less than a fiftieth of that."""


class Staging:
    """Page-locked host memory, mapped for its lifetime."""

    def __init__(self, device: OpenclDevice, queue: Any, sizes: Mapping[Any, int]) -> None:
        import pyopencl as cl

        self._places: dict[Any, tuple[int, int]] = {}
        total = 0
        for key, nbytes in sizes.items():
            self._places[key] = total, nbytes
            total += -(-nbytes // device.facts.alignment) * device.facts.alignment
        total = max(total, 1)
        with Allocation(device, total, "staged inputs and outputs"):
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
            self._memory = cl.Buffer(device.context, flags, total)
            access: Any = cl.map_flags.READ | cl.map_flags.WRITE
            self._host = MappedBytes(queue, self._memory, access, total)

    def view(self, key: Any) -> NDArray[np.uint8]:
        """The memory of one of `sizes`."""
        start, nbytes = self._places[key]
        return self._host.view[start : start + nbytes]


class StagedArena(Arena):
    """Inputs are copied to staging memory by the thread of the request, and on by a queue; outputs in reverse."""

    reads_in_place = False

    def __init__(self, device: OpenclDevice, plan: LaunchPlan, *, profiling: bool) -> None:
        self._upload, self._download = (device.new_queue(profiling=profiling) for _ in range(2))
        super().__init__(device, plan, profiling=profiling)
        inputs = _distinct(plan.inputs)
        outputs = _distinct(plan.outputs)
        # An output may be an input in another shape, which is transferred with the input.
        sizes = {("in", b): b.byte_size for b in inputs} | {("out", b): b.byte_size for b in outputs}
        self._staging = Staging(device, self._upload, sizes)
        self._fetched: dict[Buffer, list[Any]] = {}

    def _allocate(self, nbytes: int) -> Any:
        return self._cl.Buffer(self._device.context, self._cl.mem_flags.READ_WRITE, nbytes)

    def upload(self, given: Sequence[tuple[Buffer, NDArray[np.uint8]]]) -> None:
        """Copy in pieces; the queue moves each while the next is copied."""
        for buffer, value in given:
            part, staging = self.part(buffer), self._staging.view(("in", buffer))
            for start, stop in _pieces(value.size):
                begun = time.perf_counter_ns()
                staging[start:stop] = value[start:stop]
                self.copied.append((begun, time.perf_counter_ns()))
                self.uploads.append(
                    self._cl.enqueue_copy(self._upload, part, staging[start:stop], dst_offset=start, is_blocking=False)
                )
                self._upload.flush()

    def fetch(self, written: Mapping[Buffer, Any], queue: Any) -> None:
        """Enqueue the copies to staging memory, each after the last kernel that uses the output."""
        for buffer, last in written.items():
            part, staging = self.part(buffer), self._staging.view(("out", buffer))
            behind = [last] if last is not None else self.uploads
            self._fetched[buffer] = [
                self._cl.enqueue_copy(
                    self._download,
                    staging[start:stop],
                    part,
                    src_offset=start,
                    is_blocking=False,
                    wait_for=behind,
                )
                for start, stop in _pieces(buffer.byte_size)
            ]
        # Without a flush, a driver may not start the kernels that are waited for.
        queue.flush()
        self._download.flush()

    def take(self, buffer: Buffer, target: NDArray[np.uint8]) -> None:
        """Copy pieces as they arrive."""
        staging = self._staging.view(("out", buffer))
        for (start, stop), event in zip(_pieces(buffer.byte_size), self._fetched[buffer], strict=True):
            event.wait()
            target[start:stop] = staging[start : min(stop, target.size)]

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked, zeroed memory."""
        self._more = Staging(self._device, self._upload, {"": nbytes})
        memory = self._more.view("")
        memory[:] = 0
        return memory

    def finish(self) -> None:
        """Wait for both queues."""
        self._upload.finish()
        self._download.finish()


def _distinct(values: Iterable[Any]) -> list[Buffer]:
    return list(dict.fromkeys(value for value in values if isinstance(value, Buffer)))


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, nbytes, _PIECE_BYTES):
        yield start, min(start + _PIECE_BYTES, nbytes)
