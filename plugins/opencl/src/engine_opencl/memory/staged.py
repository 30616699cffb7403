"""`StagedArena`: device memory in slots that values share, filled and read through page-locked host memory.

A driver moves pageable memory through its own page-locked memory while the caller waits. For memory that it has
allocated (`ALLOC_HOST_PTR`) and that stays mapped, its copy engines run concurrently with the host and with the kernels
of other requests, whose queues are separate. Within a request, transfers and kernels share a queue, which keeps them in
order without events.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.driver_errors import Allocation
from engine_opencl.memory.arena import Arena
from engine_opencl.memory.mapping import MappedBytes
from engine_opencl.memory.slots import slots_of
from engine_opencl.plan import Buffer, LaunchPlan

_PIECE_BYTES: Final = 1 << 20
"""Several threads of the host copy pieces, of which the device moves one at a time. Measured on an H200: a thread
copies a piece in 95 us, the device moves it in 20 us, and enqueueing that takes 5 us."""
_THREADS: Final = min(os.cpu_count() or 1, 4)


@functools.cache
def _copiers() -> ThreadPoolExecutor:
    """The threads that copy between the user's memory and staging memory; numpy lets them run side by side."""
    return ThreadPoolExecutor(_THREADS, "engine-opencl-copy")


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

    def unmap(self) -> None:
        """End the access of the host, before the memory is released."""
        self._host.unmap()


class StagedArena(Arena):
    """Inputs are copied to staging memory by threads of the host, and on by the kernels' queue; outputs in reverse."""

    reads_in_place = False
    uploads_in_order: ClassVar[bool] = True

    def __init__(self, device: OpenclDevice, plan: LaunchPlan, queue: Any, *, profiling: bool) -> None:
        super().__init__(device, plan, queue, profiling=profiling)
        sizes = _staged_sizes(plan)
        self._staging: list[Staging] = []
        self._views: dict[tuple[str, Buffer], NDArray[np.uint8]] = {}
        for group in _groups(sizes, device.facts.largest_buffer):
            self._staging.append(staging := Staging(device, queue, group))
            self._views |= {key: staging.view(key) for key in group}
        self._fetched: dict[Buffer, list[Any]] = {}

    @classmethod
    def planned_bytes(cls, plan: LaunchPlan, alignment: int) -> tuple[int, int]:
        """The slots, and the staging memory of all inputs and outputs."""
        staged = sum(-(-nbytes // alignment) * alignment for nbytes in _staged_sizes(plan).values())
        return sum(slots_of(plan.values)[1]), staged

    def _allocate(self, plan: LaunchPlan) -> None:
        slots, sizes = slots_of(plan.values)
        memory = []
        for nbytes in sizes:
            with self._allocation(nbytes):
                memory.append(self._cl.Buffer(self._device.context, self._cl.mem_flags.READ_WRITE, nbytes))
        self._parts = {buffer: memory[slot] for buffer, slot in slots.items()}

    def upload(self, given: Sequence[tuple[Buffer, NDArray[np.uint8]]]) -> None:
        """Copy in pieces; the queue moves each while others are copied."""
        for buffer, value in given:
            part, staging = self.part(buffer), self._views["in", buffer]
            begun = time.perf_counter_ns()
            for start, stop in _copied(staging, value):
                self.uploads.append(
                    self._cl.enqueue_copy(self._queue, part, staging[start:stop], dst_offset=start, is_blocking=False)
                )
                self._queue.flush()
            self.copied.append((begun, time.perf_counter_ns()))

    def fetch(self, written: Sequence[Buffer]) -> None:
        """Enqueue the copies to staging memory."""
        for buffer in written:
            part, staging = self.part(buffer), self._views["out", buffer]
            self._fetched[buffer] = [
                self._cl.enqueue_copy(self._queue, staging[start:stop], part, src_offset=start, is_blocking=False)
                for start, stop in _pieces(buffer.byte_size)
            ]
        self._queue.flush()

    def take(self, buffer: Buffer, target: NDArray[np.uint8]) -> None:
        """Copy the output in pieces, each as soon as the device has transferred it."""
        staging, events = self._views["out", buffer], self._fetched[buffer]
        for _ in _copied(target, staging[: target.size], events):
            pass

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked memory of zeros, from which transfers are faster."""
        self._staging.append(Staging(self._device, self._queue, {"": nbytes}))
        memory = self._staging[-1].view("")
        memory[:] = 0
        return memory

    def close(self) -> None:
        """Unmap the staging memory, and close the arena."""
        self._fetched.clear()
        self._views.clear()
        self.uploads = []
        while self._staging:
            self._staging.pop().unmap()
        self._queue.finish()
        super().close()


def _groups(sizes: Mapping[Any, int], most: int) -> list[dict[Any, int]]:
    """The keys in their order, in groups whose sizes add up to at most `most`, unless one alone is larger."""
    groups: list[dict[Any, int]] = []
    total = most
    for key, nbytes in sizes.items():
        # Each view starts at a multiple of the device's alignment, which is at most 4 KiB.
        taken = -(-nbytes // 4096) * 4096
        if total + taken > most:
            groups.append({})
            total = 0
        groups[-1][key] = nbytes
        total += taken
    return groups


def _staged_sizes(plan: LaunchPlan) -> dict[tuple[str, Buffer], int]:
    """The bytes of each transfer. An output may be an input in another shape, which is transferred with the input."""
    return {("in", b): b.byte_size for b in _distinct(plan.inputs)} | {("out", b): b.byte_size for b in plan.fetched}


def _distinct(values: Iterable[Any]) -> list[Buffer]:
    return list(dict.fromkeys(value for value in values if isinstance(value, Buffer)))


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, nbytes, _PIECE_BYTES):
        yield start, min(start + _PIECE_BYTES, nbytes)


def _copied(
    target: NDArray[np.uint8], source: NDArray[np.uint8], events: Sequence[Any] = ()
) -> Iterator[tuple[int, int]]:
    """Copy by several threads; yields each piece, in order, once it is copied.

    Args:
        events: for each piece, the event that it waits for; none if the source is complete.
    """
    pieces = list(_pieces(source.size))

    def copy(number: int) -> None:
        start, stop = pieces[number]
        if events:
            events[number].wait()
        target[start:stop] = source[start:stop]

    copies = _submitted(copy, len(pieces)) if len(pieces) > 1 else []
    try:
        for number, piece in enumerate(pieces):
            if number < len(copies):
                copies[number].result()
            else:
                copy(number)
            yield piece
    finally:
        # After an error, nothing may use memory that will be unmapped or is the user's.
        for each in copies:
            each.cancel()
        wait(copies)


def _submitted(copy: Callable[[int], None], count: int) -> list[Future[None]]:
    """Copies by threads; none once the interpreter has begun to exit, which starts no threads any more."""
    copies: list[Future[None]] = []
    with contextlib.suppress(RuntimeError):
        for number in range(count):
            copies.append(_copiers().submit(copy, number))
    return copies
