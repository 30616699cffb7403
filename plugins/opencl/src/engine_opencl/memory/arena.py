"""`Arena`: the memory of all values of an inference, and its transfers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.driver_errors import Allocation
from engine_opencl.plan import Buffer, LaunchPlan


class Arena(ABC):
    """The memory of one inference at a time. Not thread-safe; its stages may run on different threads in turn.

    Args:
        queue: the kernels' queue.
    """

    reads_in_place: ClassVar[bool]
    """Whether kernels can read an input in the user's memory."""
    uploads_in_order: ClassVar[bool] = False
    """Whether uploads are commands of the kernels' queue, so that kernels need not wait for their events."""

    def __init__(self, device: OpenclDevice, plan: LaunchPlan, queue: Any, *, profiling: bool) -> None:
        import pyopencl as cl

        self._cl = cl
        self._device = device
        self._queue = queue
        self._profiling = profiling
        self._parts: dict[Buffer, Any] = {}
        self.uploads: list[Any] = []
        """The events that kernels must wait for."""
        self.copied: list[tuple[int, int]] = []
        """When the host copied inputs (`time.perf_counter_ns`)."""
        self._memory: Any = None
        self._allocate(plan)

    @classmethod
    def planned_bytes(cls, plan: LaunchPlan, alignment: int) -> tuple[int, int]:
        """The bytes that it has on the device, and of staging memory on the host."""
        return max(plan.arena_bytes, 1), 0

    def part(self, buffer: Buffer) -> Any:
        """The device memory of a value, which may be larger than the value."""
        if buffer not in self._parts:
            self._parts[buffer] = self._memory.get_sub_region(buffer.offset, buffer.byte_size)
        return self._parts[buffer]

    @abstractmethod
    def _allocate(self, plan: LaunchPlan) -> None:
        """Set `_memory`, which `part` subdivides, or `_parts`. Raises `OutOfMemoryError`."""

    def _allocation(self, nbytes: int) -> Allocation:
        return Allocation(self._device, nbytes, "the intermediate values of an inference")

    @abstractmethod
    def upload(self, given: Sequence[tuple[Buffer, NDArray[np.uint8]]]) -> None:
        """Bring inputs to the device. The arrays are not read after `uploads` have ended."""

    @abstractmethod
    def fetch(self, written: Sequence[Buffer]) -> None:
        """Enqueue the transfers of these outputs, after the kernels."""

    @abstractmethod
    def take(self, buffer: Buffer, target: NDArray[np.uint8]) -> None:
        """Wait for an output and copy it to the host; the kernels have ended."""

    def host_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the device can copy to asynchronously."""
        return np.zeros(nbytes, np.uint8)

    def begin(self) -> None:
        """Discard the transfers of the previous inference."""
        self.uploads = []
        self.copied = []

    def release(self) -> None:  # noqa: B027
        """Release the resources of outputs after the inference has ended."""

    def finish(self) -> None:  # noqa: B027
        """Wait until the arena's queues are idle."""

    def close(self) -> None:
        """Release everything, once all commands have ended: events, then memory. The arena cannot be used again."""
        self.uploads = []
        self._parts.clear()
        self._memory = None
