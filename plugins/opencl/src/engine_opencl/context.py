"""`Context`: the memory and the bound kernels of one inference at a time over a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError, OutOfMemoryError
from engine.plugin_api import NodeProfile
from engine_opencl.device import OpenclDevice
from engine_opencl.plan import Buffer, Plan
from engine_opencl.programs import Programs


class Weights:
    """What is on the device for all inferences of a network, uploaded when it is first asked for. Thread-safe."""

    def __init__(self, device: OpenclDevice) -> None:
        self._device = device
        self._buffers: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def buffer(self, name: Hashable, make: Callable[[], NDArray[Any]]) -> Any:
        """The device's buffer of that name."""
        import pyopencl as cl

        with self._lock:
            if name not in self._buffers:
                data = make()
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
                host = data.view(np.uint8) if data.dtype == bool else data
                if not host.nbytes:
                    host = np.zeros(1, np.uint8)
                with _Allocation(self._device, host.nbytes, "a constant"):
                    self._buffers[name] = cl.Buffer(self._device.context, flags, hostbuf=np.ascontiguousarray(host))
            return self._buffers[name]


class _Allocation:
    """Turns the device's errors of allocation into one that names the size."""

    def __init__(self, device: OpenclDevice, nbytes: int, what: str) -> None:
        self.device, self.nbytes, self.what = device, nbytes, what

    def __enter__(self) -> None:
        if self.nbytes > self.device.facts.largest_buffer:
            raise self._error("it allows buffers of at most " + f"{self.device.facts.largest_buffer} bytes")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyopencl as cl

        if isinstance(error, cl.Error):
            raise self._error(str(error)) from error

    def _error(self, why: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"OPENCL: {self.device.facts.name} has no memory for {self.what} of {self.nbytes} bytes: {why}"
        )


class Context:
    """Runs a plan, one inference at a time: upload, compute, download, each on a queue of its own."""

    def __init__(
        self, device: OpenclDevice, plan: Plan, programs: Programs, weights: Weights, *, profiling: bool
    ) -> None:
        import pyopencl as cl

        self.plan = plan
        self._cl = cl
        self._device = device
        self._profiling = profiling
        self._upload, self._compute, self._download = (device.new_queue(profiling=profiling) for _ in range(3))
        with _Allocation(device, max(plan.arena_bytes, 1), "the values of an inference"):
            self._arena = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, max(plan.arena_bytes, 1))
            self._parts: dict[Buffer, Any] = {}
            self._kernels = [self._bound(launch, programs, weights) for launch in plan.launches]
            for each in (*plan.inputs, *plan.outputs):
                if isinstance(each, Buffer):
                    self._memory_of(each, weights)
        self._uploaded: list[Any] = []
        self._computed: list[Any] = []

    def _memory_of(self, buffer: Buffer, weights: Weights) -> Any:
        if buffer.weight is not None:
            return weights.buffer(buffer.weight, self.plan.weights[buffer.weight])
        if buffer not in self._parts:
            self._parts[buffer] = self._arena.get_sub_region(buffer.offset, buffer.byte_size)
        return self._parts[buffer]

    def _bound(self, launch: Any, programs: Programs, weights: Weights) -> Any:
        kernel = self._cl.Kernel(programs.program(launch.source), launch.kernel)
        for position, argument in enumerate(launch.arguments):
            kernel.set_arg(position, self._memory_of(argument, weights) if isinstance(argument, Buffer) else argument)
        return kernel

    # -- one inference ------------------------------------------------------------------------------------

    def upload(self, values: Sequence[Any]) -> None:
        """Bring the inputs to the device; the arrays must stay as they are until `wait`."""
        self._uploaded = [
            self._cl.enqueue_copy(self._upload, self._parts[buffer], _bytes(value), is_blocking=False)
            for buffer, value in zip(self.plan.inputs, values, strict=True)
            if buffer is not None and value.nbytes
        ]
        self._upload.flush()

    def compute(self, check_cancelled: Callable[[], None]) -> None:
        """Enqueue all kernels, behind the uploads."""
        cl, queue = self._cl, self._compute
        if self._uploaded:
            cl.enqueue_barrier(queue, wait_for=self._uploaded)
        events = []
        for launch, kernel in zip(self.plan.launches, self._kernels, strict=True):
            check_cancelled()
            local = launch.local_size or None
            events.append(cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, local))
        queue.flush()
        self._computed = events

    def wait(self) -> None:
        """Wait for the kernels. Raises `DeviceError` where the device failed."""
        try:
            self._compute.finish()
        except self._cl.Error as e:
            raise DeviceError(f"OPENCL: {self._device.facts.name} failed while it computed: {e}") from e

    def download(self, index: int, target: NDArray[Any]) -> None:
        """Fetch an output into a contiguous array of its shape."""
        buffer = self.plan.outputs[index]
        assert isinstance(buffer, Buffer)
        if target.nbytes:
            self._cl.enqueue_copy(self._download, _bytes(target), self._memory(buffer), is_blocking=True)

    def _memory(self, buffer: Buffer) -> Any:
        return self._parts[buffer]

    def profiles(self) -> list[NodeProfile]:
        """When each kernel of the last inference ran, on the host's clock as near as the first event tells."""
        if not self._profiling or not self._computed:
            return []
        first = self._computed[0].profile.queued
        return [
            NodeProfile(
                launch.node,
                launch.op_type,
                "native",
                event.profile.start - first,
                event.profile.end - event.profile.start,
            )
            for launch, event in zip(self.plan.launches, self._computed, strict=True)
        ]

    def drain(self) -> None:
        """Wait until nothing of an inference is left on the device."""
        for queue in (self._upload, self._compute, self._download):
            queue.finish()


def _bytes(value: Any) -> Any:
    """An array as pyopencl takes it: bool is no type of the device."""
    return value.reshape(-1).view(np.uint8)
