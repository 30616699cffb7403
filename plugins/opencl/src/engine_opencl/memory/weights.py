"""`Weights`: device data shared by all inferences of a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.driver_errors import Allocation


class Weights:
    """Device data shared by all inferences of a network, uploaded on first use. Thread-safe."""

    def __init__(self, device: OpenclDevice) -> None:
        self._device = device
        self._buffers: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def buffer(self, name: Hashable, make: Callable[[], NDArray[Any]]) -> Any:
        """The device buffer with this name. Raises `OutOfMemoryError`."""
        import pyopencl as cl

        with self._lock:
            if name not in self._buffers:
                data = make()
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
                host = data.view(np.uint8) if data.dtype == bool else data
                if not host.nbytes:
                    host = np.zeros(1, np.uint8)
                with Allocation(self._device, host.nbytes, "a constant"):
                    self._buffers[name] = cl.Buffer(self._device.context, flags, hostbuf=np.ascontiguousarray(host))
            return self._buffers[name]

    def nbytes(self, more: Mapping[Hashable, Callable[[], NDArray[Any]]]) -> int:
        """The bytes of all buffers, and of those of `more` that are not uploaded yet."""
        with self._lock:
            known = sum(int(buffer.size) for buffer in self._buffers.values())
            missing = [make for name, make in more.items() if name not in self._buffers]
        return known + sum(max(make().nbytes, 1) for make in missing)

    def keep(self, names: Collection[Hashable]) -> None:
        """Release all other buffers, once the contexts that use them are freed."""
        with self._lock:
            self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in names}
