"""`Stopwatch`: measures launches on a device, with separate memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.limits import check_limits
from engine_opencl.execution.kernels import new_kernel
from engine_opencl.plan import Buffer, Launch
from engine_opencl.programs.programs import Programs

_PATTERN_BYTES: Final = 1 << 20
_MIN_CACHE: Final = {"cpu": 64 << 20}
"""The minimum cache size to assume, by kind of device: CPU drivers may report only a per-core cache (Intel)."""
_MAX_CACHE: Final = 128 << 20
_SPAN_NS: Final = 200_000
"""The minimum measured time: a device clock may count microseconds, so short launches are timed together."""
_MAX_REPEATS: Final = 20
_GAP_NS: Final = 1300
"""Nanoseconds between dependent kernels, measured on an H200."""


class Stopwatch:
    """Runs launches over buffers of plausible numbers. Not thread-safe.

    All runs share the memory of a `Buffer`; weights have their real values, as they may be indices. All runs repeat
    their launches as often as the first one does: only the first repetition has cold caches, so more repetitions would
    appear faster.
    """

    def __init__(self, device: OpenclDevice, programs: Programs) -> None:
        import pyopencl as cl

        self._cl = cl
        self._device, self._programs = device, programs
        self._queue = device.new_queue(profiling=True)
        self._memory: dict[Buffer | Hashable, Any] = {}
        pattern = np.random.default_rng(0).integers(0, 1 << 16, _PATTERN_BYTES // 2, np.uint16)
        # No denormals, infinities or NaN, whether read as f32 or f16.
        self._pattern = (pattern & 0x83FF) | 0x3800
        least = _MIN_CACHE.get(device.facts.kind, 1 << 20)
        cached = min(max(2 * int(device.handle.global_mem_cache_size), least), _MAX_CACHE)
        self._evicted = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, cached)
        self._evicted_bytes = cached
        self._repeats = 0

    def bind(
        self, launches: Sequence[Launch], weights: Mapping[Hashable, Callable[[], NDArray[Any]]]
    ) -> Callable[[], int]:
        """A function that runs the launches and returns the elapsed nanoseconds.

        Raises `DeviceError` if they exceed the device's limits, and errors of pyopencl.
        """
        steps = []
        for launch in launches:
            kernel = new_kernel(self._programs.program(launch.source), launch.kernel)
            check_limits(self._device, launch, kernel)
            for position, argument in enumerate(launch.arguments):
                given = self._buffer(argument, weights) if isinstance(argument, Buffer) else argument
                kernel.set_arg(position, given)
            steps.append((kernel, launch.global_size, launch.local_size or None))
        self._queue.finish()
        is_first = True

        def run() -> int:
            nonlocal is_first
            if is_first:
                is_first = False
                self._time(steps, 1)
            if not self._repeats:
                self._repeats = min(max(_SPAN_NS // max(self._time(steps, 1), 1), 1), _MAX_REPEATS)
            return self._time(steps, self._repeats)

        return run

    def forget(self) -> None:
        """Release the memory of the launches so far, and reset the number of repetitions."""
        self._memory.clear()
        self._repeats = 0

    def _time(self, steps: Sequence[tuple[Any, ...]], repeats: int) -> int:
        """Nanoseconds of one run of all steps, on the device's clock, or on the host's if that does not advance."""
        # Evict the caches, as in a network.
        self._cl.enqueue_fill_buffer(self._queue, self._evicted, np.zeros(1, np.uint32), 0, self._evicted_bytes)
        self._queue.finish()
        begun = time.perf_counter_ns()
        events = [self._cl.enqueue_nd_range_kernel(self._queue, *step) for _ in range(repeats) for step in steps]
        self._queue.finish()
        passed = time.perf_counter_ns() - begun
        on_device = self._on_device(events)
        return int(on_device if on_device > 0 else passed) // repeats

    def _on_device(self, events: Sequence[Any]) -> int:
        """The nanoseconds of launches on the device's clock.

        A GPU may finish a kernel before the host has enqueued the next: with profiling, that takes 10 us on an H200.
        In a network the host is ahead, and the device waits only `_GAP_NS` between kernels.
        """
        if self._device.facts.kind == "gpu":
            busy = sum(each.profile.end - each.profile.start for each in events)
            return busy + _GAP_NS * (len(events) - 1) if busy else 0
        return int(events[-1].profile.end - events[0].profile.start)

    def _buffer(self, buffer: Buffer, weights: Mapping[Hashable, Callable[[], NDArray[Any]]]) -> Any:
        key = buffer if buffer.weight is None else ("weight", buffer.weight)
        if key not in self._memory:
            if buffer.weight is None:
                data = np.resize(self._pattern, -(-max(buffer.byte_size, 1) // 2))
            else:
                data = np.ascontiguousarray(weights[buffer.weight]()).reshape(-1).view(np.uint8)
            flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.COPY_HOST_PTR
            host = data if data.nbytes else np.zeros(1, np.uint8)
            self._memory[key] = self._cl.Buffer(self._device.context, flags, hostbuf=host)
        return self._memory[key]
