"""`OpenclTensor`: a tensor in an OpenCL buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import ContextClosed, DeviceError
from engine.plugin_api import ElementType, RemoteContext, RemoteTensor
from engine.startup import dataclass
from engine_opencl.devices.forks import keep_after_fork, keep_if_forked
from engine_opencl.remote.queue import ContextQueue

HOST = "host"
"""The space of addresses in the host's memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a tensor.

    Attributes:
        buffer: the `pyopencl.Buffer`.
        space, start, stop: the bytes that it covers, of the host's memory or of a buffer, which `space` names.
        view: the bytes as the host accesses them at any time; None if it cannot.
        owner: what must live as long as the buffer.
        is_writable: whether kernels may write it.
    """

    buffer: Any
    space: object
    start: int
    stop: int
    view: NDArray[np.uint8] | None = None
    owner: object = None
    is_writable: bool = True

    def overlaps(self, other: Memory) -> bool:
        """Whether both have bytes in common."""
        return self.space == other.space and self.start < other.stop and other.start < self.stop

    def overlaps_array(self, array: NDArray[Any]) -> bool:
        """Whether an array may have bytes in common with it, also where the host must not access them."""
        if self.space != HOST:
            return False
        size = self.stop - self.start
        memory: Any = (ctypes.c_ubyte * size).from_address(self.start)
        own: NDArray[Any] = np.frombuffer(memory, np.uint8)
        return np.may_share_memory(own, array)


class OpenclTensor(RemoteTensor):
    """Its `handle` is a `pyopencl.Buffer`, of which the tensor takes the first `nbytes`; `handle.int_ptr` is the
    `cl_mem`."""

    dlpack_device_type = 4  # kDLOpenCL

    def __init__(
        self,
        context: RemoteContext,
        element_type: ElementType,
        shape: tuple[int, ...],
        memory: Memory,
        queue: ContextQueue,
    ) -> None:
        super().__init__(context, element_type, shape)
        keep_after_fork(self)
        self.queue = queue
        self._memory: Memory | None = memory
        self.is_writable = memory.is_writable

    @property
    def memory(self) -> Memory:
        """The memory of the tensor. Raises `ContextClosed`."""
        memory = self._memory
        if memory is None:
            raise ContextClosed(f"{self}: the context is closed")
        return memory

    @property
    def handle(self) -> Any:
        """The `pyopencl.Buffer`. Raises `ContextClosed` if the context was closed."""
        return self.memory.buffer

    def read(self) -> NDArray[Any]:
        """The elements; waits for the commands that were in the application's queue."""
        array: NDArray[Any] = np.empty(self.shape, self.dtype)
        if not self.nbytes:
            return array
        with self._driver_errors("reading"):
            self.queue.wait_for_application()
            view = self.host_bytes()
            if view is not None:
                _bytes(array)[:] = view
            else:
                self.queue.copy(_bytes(array), self.handle, self.nbytes)
        return array

    def write(self, array: NDArray[Any]) -> None:
        """Set the elements; waits for the commands that were in the application's queue."""
        if not self.nbytes:
            return
        with self._driver_errors("writing"):
            self.queue.wait_for_application()
            view = self.host_bytes()
            if view is not None:
                view[:] = _bytes(array)
            else:
                self.queue.copy(self.handle, _bytes(array), self.nbytes)

    def copy_on_device(self, source: RemoteTensor) -> bool:
        """Copy by the device, unless the memory overlaps, which OpenCL does not allow."""
        if not isinstance(source, OpenclTensor) or self.shares_memory(source):
            return False
        if self.nbytes:
            with self._driver_errors("copying"):
                self.queue.wait_for_application()
                self.queue.copy(self.handle, source.handle, self.nbytes)
        return True

    def host_bytes(self) -> NDArray[np.uint8] | None:
        """The bytes as the host accesses them; None if it cannot."""
        view = self.memory.view
        return None if view is None else view[: self.nbytes]

    def host_view(self) -> NDArray[Any] | None:
        """See `RemoteTensor`: shared virtual memory that is fine-grained."""
        view = self.host_bytes()
        return None if view is None else view.view(self.dtype).reshape(self.shape)

    def shares_memory(self, other: object) -> bool:
        """See `RemoteTensor`: also the same buffer, and parts of one that overlap."""
        if isinstance(other, np.ndarray):
            return self.memory.overlaps_array(other)
        return super().shares_memory(other) or (isinstance(other, OpenclTensor) and self.memory.overlaps(other.memory))

    def release(self) -> None:
        """Drop the buffer; running inferences refer to it themselves."""
        keep_if_forked(self._memory)
        self._memory = None

    @contextmanager
    def _driver_errors(self, what: str) -> Iterator[None]:
        import pyopencl as cl

        try:
            yield
        except cl.Error as e:
            raise DeviceError(f"OPENCL: {what} {self} failed: {e}") from e


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
