"""`Arena`: one allocation for all values of an inference, and its transfers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.driver_errors import Allocation
from engine_opencl.plan import Buffer, LaunchPlan


class Arena(ABC):
    """The memory of one inference at a time. Not thread-safe; its stages may run on different threads in turn."""

    reads_in_place: ClassVar[bool]
    """Whether kernels can read an input in the user's memory."""

    def __init__(self, device: OpenclDevice, plan: LaunchPlan, *, profiling: bool) -> None:
        import pyopencl as cl

        self._cl = cl
        self._device = device
        self._profiling = profiling
        self._parts: dict[Buffer, Any] = {}
        self.uploads: list[Any] = []
        """The events that kernels must wait for."""
        self.copied: list[tuple[int, int]] = []
        """When the host copied inputs (`time.perf_counter_ns`)."""
        nbytes = max(plan.arena_bytes, 1)
        with Allocation(device, nbytes, "the intermediate values of an inference"):
            self._memory = self._allocate(nbytes)

    def part(self, buffer: Buffer) -> Any:
        """The device memory of a value."""
        if buffer not in self._parts:
            self._parts[buffer] = self._memory.get_sub_region(buffer.offset, buffer.byte_size)
        return self._parts[buffer]

    @abstractmethod
    def _allocate(self, nbytes: int) -> Any:
        """The buffer that `part` subdivides."""

    @abstractmethod
    def upload(self, given: Sequence[tuple[Buffer, NDArray[np.uint8]]]) -> None:
        """Bring inputs to the device. The arrays are not read after `uploads` have ended."""

    @abstractmethod
    def fetch(self, written: Mapping[Buffer, Any], queue: Any) -> None:
        """Enqueue the transfers of outputs.

        Args:
            written: for each output, the event of the last kernel that uses it, or None.
            queue: the kernels' queue.
        """

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

    def release(self, queue: Any) -> None:  # noqa: B027
        """Release the resources of outputs after the inference has ended. `queue` is that of the kernels."""

    def finish(self) -> None:  # noqa: B027
        """Wait until the arena's queues are idle."""
