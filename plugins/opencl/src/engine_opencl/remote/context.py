"""`OpenclContext`: the device's context and queue for transfers, or an application's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import DeviceError
from engine.plugin_api import Config, ElementType, Plugin, RemoteContext, RemoteTensor
from engine.properties import DEVICE_ID
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.driver_errors import Allocation
from engine_opencl.properties import DEVICE_NAME
from engine_opencl.remote.handles import OCL_CONTEXT, OCL_QUEUE, device_for, memory_of, native_objects
from engine_opencl.remote.queue import ContextQueue
from engine_opencl.remote.tensor import HOST, Memory, OpenclTensor

if TYPE_CHECKING:
    from engine_opencl.programs.programs import Programs


class OpenclContext(RemoteContext):
    """Tensors are buffers of one `cl_context`: the engine's for the device, or the application's.

    Attributes:
        opencl: the device in this `cl_context`.
        programs: the compiled kernels in this `cl_context`.
    """

    def __init__(
        self, plugin: Plugin, device: str, opencl: OpenclDevice, programs: Programs, application_queue: Any
    ) -> None:
        self.opencl = opencl
        self.programs = programs
        self.queue = ContextQueue(opencl, application_queue)
        handles = {OCL_CONTEXT: opencl.context}
        if application_queue is not None:
            handles[OCL_QUEUE] = application_queue
        super().__init__(plugin, device, handles)

    @classmethod
    def created(
        cls,
        plugin: Plugin,
        device: str,
        config: Config,
        handles: Mapping[str, object],
        shared_programs: Callable[[OpenclDevice], Programs],
    ) -> OpenclContext:
        """A context for the configuration and an application's objects.

        `shared_programs` gives the compiled kernels in the engine's own OpenCL context for a device.

        Raises `InputError` for objects of wrong types, `PropertyError` if they contradict the configuration.
        """
        from engine_opencl.programs.programs import Programs

        context, queue = native_objects(handles)
        opencl = device_for(config, context, queue)
        programs = shared_programs(opencl) if context is None else Programs(opencl)
        is_chosen = context is not None or config[DEVICE_ID] or config[DEVICE_NAME]
        return cls(plugin, f"{plugin.name}.{opencl.device_id}" if is_chosen else device, opencl, programs, queue)

    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """Memory of the kind that inferences use; the host can access it where that is fine-grained shared memory."""
        import pyopencl as cl

        nbytes = max(math.prod(shape) * np.dtype(element_type.numpy).itemsize, 1)
        flags: Any = cl.mem_flags.READ_WRITE
        view: Any = None
        with Allocation(self.opencl, nbytes, "a remote tensor"):
            if self.opencl.memory_kind == "shared":
                view = cl.fsvm_empty(self.opencl.context, nbytes, np.dtype(np.uint8))
                buffer = cl.Buffer(self.opencl.context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=view)
            else:
                if self.opencl.memory_kind == "mapped":
                    flags |= cl.mem_flags.ALLOC_HOST_PTR
                buffer = cl.Buffer(self.opencl.context, flags, nbytes)
        space, start = (buffer.int_ptr, 0) if view is None else (HOST, view.ctypes.data)
        memory = Memory(buffer, space, start, start + nbytes, view)
        return OpenclTensor(self, element_type, shape, memory, self.queue)

    def wrap_impl(self, handle: object, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """A tensor in a `pyopencl.Buffer` (or `cl_mem` as an int), shared virtual memory, or an array on the host."""
        import pyopencl as cl

        nbytes = math.prod(shape) * np.dtype(element_type.numpy).itemsize
        try:
            memory = memory_of(self, self.opencl, handle, nbytes)
        except cl.Error as e:
            raise DeviceError(f"{self}: the driver refuses the memory: {e}") from e
        return OpenclTensor(self, element_type, shape, memory, self.queue)
