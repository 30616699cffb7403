"""The native handles that a context takes: their checks, and the memory that they name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, PropertyError, UnsupportedError
from engine.plugin_api import Config, RemoteContext
from engine.properties import DEVICE_ID
from engine_opencl.devices.device import OpenclDevice, device_of, find_devices
from engine_opencl.properties import DEVICE_NAME
from engine_opencl.remote.tensor import HOST, Memory

OCL_CONTEXT: Final = "OCL_CONTEXT"
OCL_QUEUE: Final = "OCL_QUEUE"
CONTEXT_HANDLES: Final = {
    OCL_CONTEXT: "the application's pyopencl.Context, or a cl_context as an int",
    OCL_QUEUE: "the application's pyopencl.CommandQueue, or a cl_command_queue as an int",
}


def native_objects(handles: Mapping[str, object]) -> tuple[Any, Any]:
    """The application's context and queue, either of which may be None. Raises `InputError`."""
    import pyopencl as cl

    try:
        context = _object(handles, OCL_CONTEXT, cl.Context)
        queue = _object(handles, OCL_QUEUE, cl.CommandQueue)
        if queue is None:
            return context, None
        own = queue.context
    except cl.Error as e:
        raise InputError(f"OPENCL: the application's context or queue does not exist, or no longer exists: {e}") from e
    if context is not None and own != context:
        raise InputError(f"OPENCL: {OCL_QUEUE} is of another context than {OCL_CONTEXT}; pass the queue alone")
    return own, queue


def _object(handles: Mapping[str, object], name: str, kind: Any) -> Any:
    value = handles.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return kind.from_int_ptr(value)
    if value is not None and not isinstance(value, kind):
        raise InputError(f"OPENCL: {name} must be {CONTEXT_HANDLES[name]}; got {type(value).__name__}")
    return value


def device_for(config: Config, context: Any, queue: Any) -> OpenclDevice:
    """The device that a configuration, or the application's context or queue, selects, in the application's context.

    Raises `DeviceNotFoundError`, `PropertyError` if they contradict each other.
    """
    is_stated = bool(config[DEVICE_ID] or config[DEVICE_NAME])
    if context is None:
        return device_of(config[DEVICE_ID], config[DEVICE_NAME])
    present = [queue.device] if queue is not None else list(context.devices)
    candidates = [device_of(config[DEVICE_ID], config[DEVICE_NAME])] if is_stated else list(find_devices())
    for device in candidates:
        if device.handle in present:
            return device.in_context(context)
    names = ", ".join(str(each.name).strip() for each in present)
    raise PropertyError(
        f"OPENCL: the application's context or queue is for {names}, and "
        + ("the configuration selects another device" if is_stated else "the engine cannot use this device")
    )


def memory_of(context: RemoteContext, device: OpenclDevice, handle: Any, nbytes: int) -> Memory:
    """The memory that a handle of the application names. Raises `InputError`, `UnsupportedError`."""
    import pyopencl as cl

    if isinstance(handle, int) and not isinstance(handle, bool) and handle > 0:
        handle = cl.Buffer.from_int_ptr(handle)
    if isinstance(handle, cl.Buffer):
        memory = _in_buffer(context, device, handle)
    elif isinstance(handle, cl.SVMPointer):
        memory = _in_svm(context, device, handle)
    elif isinstance(handle, np.ndarray) or hasattr(handle, "__dlpack__"):
        memory = _on_host(context, device, handle)
    else:
        raise InputError(
            f"{context}: expected a pyopencl.Buffer, a cl_mem as an int, shared virtual memory of pyopencl, or an "
            f"array or DLPack tensor on the host; got {type(handle).__name__}"
        )
    if memory.stop - memory.start < nbytes:
        raise InputError(f"{context}: a tensor of {nbytes} bytes in memory of {memory.stop - memory.start} bytes")
    return memory


def _in_buffer(context: RemoteContext, device: OpenclDevice, buffer: Any) -> Memory:
    import pyopencl as cl

    if buffer.context != device.context:
        raise InputError(
            f"{context}: the buffer is of another OpenCL context; pass that one as {OCL_CONTEXT} to create_context, or "
            "make buffers in `handles` of this one"
        )
    if buffer.flags & cl.mem_flags.WRITE_ONLY:
        raise InputError(f"{context}: the buffer is write-only for kernels, but kernels also read tensors")
    space, start = _place(buffer)
    is_writable = not buffer.flags & cl.mem_flags.READ_ONLY
    # A reference of its own, so that the memory outlives `buffer.release()`; the array under it lives with `buffer`.
    own = cl.Buffer.from_int_ptr(buffer.int_ptr)
    return Memory(own, space, start, start + buffer.size, owner=buffer, is_writable=is_writable)


def _place(buffer: Any) -> tuple[object, int]:
    """Where a buffer begins: an address of the host that it was made with, or an offset in itself or its parent."""
    import pyopencl as cl

    if buffer.flags & cl.mem_flags.USE_HOST_PTR:
        return HOST, buffer.get_host_array((buffer.size,), np.dtype(np.uint8)).ctypes.data
    root = buffer.associated_memobject
    return (buffer.int_ptr, 0) if root is None else (root.int_ptr, buffer.offset)


def _in_svm(context: RemoteContext, device: OpenclDevice, pointer: Any) -> Memory:
    """A buffer over shared virtual memory, which OpenCL keeps coherent with it (OpenCL 3.0, 5.2.1)."""
    import pyopencl as cl

    start, size = pointer.svm_ptr, pointer.size
    if start % (alignment := device.in_place_regions.alignment):
        raise InputError(f"{context}: shared virtual memory must start at a multiple of {alignment} bytes")
    # The application may have allocated it coarse-grained, so that the host must map it: no view.
    host = np.frombuffer((ctypes.c_ubyte * size).from_address(start), np.uint8)
    buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host)
    return Memory(buffer, HOST, start, start + size, owner=pointer)


def _on_host(context: RemoteContext, device: OpenclDevice, value: Any) -> Memory:
    """A buffer in an array's memory, on devices whose kernels and host see each other's writes to any memory."""
    import pyopencl as cl

    if not device.handle.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM:
        raise UnsupportedError(
            f"{context}: kernels of {device.facts.name} do not share memory with the host; use create_tensor and "
            "copy_from"
        )
    try:
        array: NDArray[Any] = value if isinstance(value, np.ndarray) else np.from_dlpack(value)
    except Exception as e:
        raise InputError(f"{context}: the {type(value).__name__} cannot be read through DLPack: {e}") from e
    alignment = device.in_place_regions.alignment
    if not array.flags.c_contiguous or array.ctypes.data % alignment or not array.nbytes or array.dtype.hasobject:
        raise InputError(
            f"{context}: an array must have numbers, be C-contiguous and start at a multiple of {alignment} bytes; use "
            "create_tensor and copy_from, or np.from_dlpack(context.create_tensor(...))"
        )
    view = array.reshape(-1).view(np.uint8)
    is_writable = bool(array.flags.writeable)
    access = cl.mem_flags.READ_WRITE if is_writable else cl.mem_flags.READ_ONLY
    buffer = cl.Buffer(device.context, access | cl.mem_flags.USE_HOST_PTR, hostbuf=view)
    start = array.ctypes.data
    return Memory(buffer, HOST, start, start + view.size, view, array, is_writable)
