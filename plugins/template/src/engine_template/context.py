"""Contexts: the device's memory as applications see it. Optional; a device without them omits this file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.plugin_api import ElementType, RemoteContext, RemoteTensor

Memory = NDArray[np.uint8]


class TemplateContext(RemoteContext):
    """Holds the device's memory. Here it is a table of allocations; a real device has the queue and allocator of its
    driver here, or the application's, if it passed any to `create_context`."""

    def __init__(self, plugin: object, device: str, handles: Mapping[str, object]) -> None:
        super().__init__(plugin, device, handles)
        self.memory: dict[int, Memory] = {}
        self._addresses = itertools.count(1)

    def allocate(self, nbytes: int) -> int:
        """Allocate device memory; returns its address, which stands for what a driver returns."""
        address = next(self._addresses)
        self.memory[address] = np.empty(nbytes, np.uint8)
        return address

    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """A tensor in memory of its own. The engine has already checked type and shape."""
        nbytes = math.prod(shape) * np.dtype(element_type.numpy).itemsize
        return TemplateTensor(self, element_type, shape, self.allocate(nbytes), is_owner=True)

    def wrap_impl(self, handle: object, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """A tensor in an allocation of the application, which frees it."""
        if not isinstance(handle, int) or handle not in self.memory:
            raise InputError(f"{self}: expected an address that `allocate` returned, got {handle!r:.80}")
        nbytes = math.prod(shape) * np.dtype(element_type.numpy).itemsize
        if (size := self.memory[handle].nbytes) < nbytes:
            raise InputError(f"{self}: {element_type} {list(shape)} takes {nbytes} bytes; {handle} has {size}")
        return TemplateTensor(self, element_type, shape, handle, is_owner=False)

    def close_impl(self) -> None:
        """Free what applications have allocated and not freed."""
        self.memory.clear()


class TemplateTensor(RemoteTensor):
    """A tensor at an address of the device's memory.

    It offers no `host_view`: this device poses as one whose memory the host cannot access. Nor does it copy on the
    device (`copy_on_device`), so that the engine copies between its tensors by way of the host.
    """

    context: TemplateContext
    _is_owner = False

    def __init__(
        self,
        context: TemplateContext,
        element_type: ElementType,
        shape: tuple[int, ...],
        address: int,
        *,
        is_owner: bool,
    ) -> None:
        super().__init__(context, element_type, shape)
        self.address = address
        self._is_owner = is_owner
        self.device_array = context.memory[address][: self.nbytes].view(self.dtype).reshape(shape)
        """The memory as the device's kernels see it."""

    @property
    def handle(self) -> int:
        """The handle that the application passes to `wrap`, or to the device's own library. Raises `ContextClosed`."""
        self.context.require_open()
        return self.address

    def read(self) -> NDArray[np.generic]:
        """Device to host. A real device waits here for the commands that write the tensor."""
        return self.device_array.copy()

    def write(self, array: NDArray[np.generic]) -> None:
        """Host to device; `array` may change when this has returned."""
        self.device_array[...] = array

    def shares_memory(self, other: object) -> bool:
        """Two tensors of this context may be at one address."""
        return super().shares_memory(other) or (isinstance(other, TemplateTensor) and other.address == self.address)

    def release(self) -> None:
        """Free the memory, when the context is closed or the tensor is no longer referenced."""
        if self._is_owner:
            self.context.memory.pop(self.address, None)

    def __del__(self) -> None:
        self.release()
