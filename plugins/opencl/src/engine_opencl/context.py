"""`Context`: the memory and the bound kernels of one inference at a time over a plan."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError, OutOfMemoryError
from engine.plugin_api import NodeProfile
from engine_opencl.common_memory import aligned_bytes, can_be_wrapped, wrapped
from engine_opencl.device import OpenclDevice
from engine_opencl.faults import Faults
from engine_opencl.plan import Buffer, Launch, Plan
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

    def keep(self, names: Collection[Hashable]) -> None:
        """Let go of all others, once the contexts that use them are gone."""
        with self._lock:
            self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in names}


class _Allocation:
    """Turns the device's errors of allocation into one that names the size."""

    def __init__(self, device: OpenclDevice, nbytes: int, what: str) -> None:
        self.device, self.nbytes, self.what = device, nbytes, what

    def __enter__(self) -> None:
        if self.nbytes > self.device.facts.largest_buffer:
            raise self._error(f"it allows buffers of at most {self.device.facts.largest_buffer} bytes")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyopencl as cl

        if isinstance(error, cl.Error):
            raise self._error(str(error)) from error

    def _error(self, why: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"OPENCL: {self.device.facts.name} ({self.device.facts.memory} bytes) has no memory for {self.what} of "
            f"{self.nbytes} bytes: {why}; use smaller inputs or fewer requests, or place a part elsewhere with HETERO"
        )


class _Doing:
    """Turns the device's errors into `DeviceError`, or `OutOfMemoryError` where it allocates only when it must."""

    def __init__(self, device: OpenclDevice, plan: Plan) -> None:
        self._device, self._plan = device, plan
        self.what = ""
        self.has_failed = False

    def __call__(self, what: str) -> _Doing:
        self.what = what
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        import pyopencl as cl

        if not isinstance(error, cl.Error):
            return
        self.has_failed = True
        name = self._device.identity
        lacking = (cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE, cl.status_code.OUT_OF_HOST_MEMORY)
        if error.code in lacking:
            raise OutOfMemoryError(
                f"OPENCL: {name} ran out of memory while {self.what}; the values of this inference take "
                f"{self._plan.arena_bytes} bytes of {self._device.facts.memory}: {error}"
            ) from error
        raise DeviceError(
            f"OPENCL: {name} failed while {self.what}: {error}; the next inference begins with new queues and memory"
        ) from error


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
        self._doing = _Doing(device, plan)
        with self._doing("making queues"):
            self._upload, self._compute, self._download = (device.new_queue(profiling=profiling) for _ in range(3))
        with _Allocation(device, max(plan.arena_bytes, 1), "the values of an inference"):
            self._host: NDArray[np.uint8] | None = None
            if device.has_common_memory:
                self._host = aligned_bytes(max(plan.arena_bytes, 1), max(device.facts.alignment, 4096))
                self._arena = wrapped(device.context, self._host)
            else:
                self._arena = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, max(plan.arena_bytes, 1))
        self._parts: dict[Buffer, Any] = {}
        self._held: dict[Buffer, Any] = {}
        self._faults: Faults | None = None
        if plan.fault_buffer is not None:
            with _Allocation(device, 8 * len(plan.faults), "what kernels report"):
                self._faults = Faults(device.context, plan.faults)
                self._parts[plan.fault_buffer] = self._faults.memory
        self._readers: dict[Buffer, list[tuple[Any, int]]] = {b: [] for b in plan.inputs if b is not None}
        self._wrapped: dict[Buffer, tuple[NDArray[np.uint8], Any]] = {}
        self._bound_elsewhere: set[Buffer] = set()
        with self._doing("kernels were bound"):
            self._steps = [self._step(launch, programs, weights) for launch in plan.launches]
            for each in (*plan.inputs, *plan.outputs):
                if isinstance(each, Buffer):
                    self._memory_of(each, weights)
        self._uploaded: list[Any] = []
        self._computed: list[Any] = []
        self._enqueued_ns = 0
        self._host_spans: list[tuple[int, int]] = []

    @property
    def has_failed(self) -> bool:
        """Whether the device gave an error, after which its queues may be of no more use."""
        return self._doing.has_failed

    def _memory_of(self, buffer: Buffer, weights: Weights) -> Any:
        if buffer.weight is not None:
            # Kernels do not keep their arguments, and `weights` keeps those of some plans only.
            memory = weights.buffer(buffer.weight, self.plan.weights[buffer.weight])
            return self._held.setdefault(buffer, memory)
        if buffer not in self._parts:
            self._parts[buffer] = self._arena.get_sub_region(buffer.offset, buffer.byte_size)
        return self._parts[buffer]

    def _step(self, launch: Launch, programs: Programs, weights: Weights) -> tuple[Any, ...]:
        """What `enqueue_nd_range_kernel` takes after the queue."""
        kernel = self._cl.Kernel(programs.program(launch.source), launch.kernel)
        check_limits(self._device, launch, kernel)
        for position, argument in enumerate(launch.arguments):
            kernel.set_arg(position, self._memory_of(argument, weights) if isinstance(argument, Buffer) else argument)
            if isinstance(argument, Buffer) and argument in self._readers:
                self._readers[argument].append((kernel, position))
        return kernel, launch.global_size, launch.local_size or None

    # -- one inference ------------------------------------------------------------------------------------

    def upload(self, values: Sequence[Any]) -> None:
        """Bring the inputs to the device; the arrays must stay as they are until `wait`."""
        given = [
            (buffer, value)
            for buffer, value in zip(self.plan.inputs, values, strict=True)
            if buffer is not None and value.nbytes
        ]
        with self._doing("inputs were brought to it"):
            if self._host is not None:
                self._host_spans = [self._put_in_place(buffer, value) for buffer, value in given]
                return
            self._uploaded = [
                self._cl.enqueue_copy(self._upload, self._parts[buffer], _bytes(value), is_blocking=False)
                for buffer, value in given
            ]
            self._upload.flush()

    def _put_in_place(self, buffer: Buffer, value: NDArray[Any]) -> tuple[int, int]:
        """Have the kernels read an input where it is, or copy it where it may not be read; when that was."""
        assert self._host is not None
        begun = time.perf_counter_ns()
        if can_be_wrapped(value):
            flat = _bytes(value)
            memory = wrapped(self._device.context, flat, read_only=True)
            self._wrapped[buffer] = flat, memory
            self._bound_elsewhere.add(buffer)
            self._bind(buffer, memory)
        else:
            if buffer in self._bound_elsewhere:
                self._bound_elsewhere.remove(buffer)
                self._bind(buffer, self._parts[buffer])
            self._view(buffer)[: value.nbytes] = _bytes(value)
        return begun, time.perf_counter_ns()

    def release(self) -> None:
        """Let go of the inputs, which belong to the user. Nothing of the inference may be running."""
        self._wrapped.clear()

    def _bind(self, buffer: Buffer, memory: Any) -> None:
        for kernel, position in self._readers[buffer]:
            kernel.set_arg(position, memory)

    def _view(self, buffer: Buffer) -> NDArray[np.uint8]:
        """A part of the arena, or the input that stands for it."""
        assert self._host is not None
        if buffer in self._wrapped:
            return self._wrapped[buffer][0]
        return self._host[buffer.offset : buffer.offset + buffer.byte_size]

    def compute(self, check_cancelled: Callable[[], None]) -> None:
        """Enqueue all kernels, behind the uploads."""
        enqueue, queue, profiling = self._cl.enqueue_nd_range_kernel, self._compute, self._profiling
        self._computed = events = []
        with self._doing("kernels were handed to it"):
            if self._uploaded:
                self._cl.enqueue_barrier(queue, wait_for=self._uploaded)
            if self._faults is not None:
                self._faults.begin(queue)
            self._enqueued_ns = time.perf_counter_ns()
            for step in self._steps:
                check_cancelled()
                event = enqueue(queue, *step)
                if profiling:
                    events.append(event)
            if self._faults is not None:
                self._faults.fetch(queue)
            queue.flush()

    def wait(self) -> None:
        """Wait for the kernels. Raises `DeviceError` where it failed, `InputError` for an index out of range."""
        with self._doing("it computed"):
            self._compute.finish()
        if self._faults is not None:
            self._faults.check()

    def download(self, index: int, target: NDArray[Any]) -> None:
        """Fetch an output into a contiguous array of its shape."""
        buffer = self.plan.outputs[index]
        assert isinstance(buffer, Buffer)
        if target.nbytes and self._host is not None:
            _bytes(target)[:] = self._view(buffer)[: target.nbytes]
        elif target.nbytes:
            with self._doing("outputs were fetched"):
                self._cl.enqueue_copy(self._download, _bytes(target), self._parts[buffer], is_blocking=True)

    def profiles(self) -> list[NodeProfile]:
        """When each kernel of the last inference ran, on the host's clock (`time.perf_counter_ns`)."""
        spans = self._on_host_clock(self._computed)
        return [
            NodeProfile(launch.node, launch.op_type, "native", start, end - start)
            for launch, (start, end) in zip(self.plan.launches, spans, strict=False)
        ]

    def upload_spans(self) -> list[tuple[int, int]]:
        """When each input of the last inference was on its way, as `profiles` counts; empty without profiling."""
        if self._host is not None:
            return self._host_spans
        return self._on_host_clock(self._uploaded if self._profiling and self._computed else [])

    def _on_host_clock(self, events: Sequence[Any]) -> list[tuple[int, int]]:
        """The device's clock has an origin of its own: the first kernel was queued when it was handed over."""
        if not self._computed:
            return []
        offset = self._enqueued_ns - self._computed[0].profile.queued
        return [(event.profile.start + offset, event.profile.end + offset) for event in events]

    def drain(self) -> None:
        """Wait until nothing of an inference is left on the device. Raises `DeviceError`."""
        with self._doing("an inference was ended early"):
            for queue in (self._upload, self._compute, self._download):
                queue.finish()
        if self._faults is not None:
            self._faults.is_clear = False


def check_limits(device: OpenclDevice, launch: Launch, kernel: Any) -> None:
    """Raise `DeviceError` where a launch is more than the device, or its compiler for this kernel, allows."""
    import pyopencl as cl

    items = math.prod(launch.local_size)
    info = cl.kernel_work_group_info
    allowed = kernel.get_work_group_info(info.WORK_GROUP_SIZE, device.handle)
    local_bytes = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device.handle)
    where = f"OPENCL: kernel `{launch.kernel}` of {launch.op_type} `{launch.node}`"
    if items > allowed:
        raise DeviceError(
            f"{where} is to run in work groups of {items} items; {device.facts.name} allows {allowed} for it"
        )
    if local_bytes > device.facts.local_bytes:
        raise DeviceError(
            f"{where} needs {local_bytes} bytes of local memory; {device.facts.name} has {device.facts.local_bytes}"
        )


def _bytes(value: Any) -> Any:
    """An array as pyopencl takes it: bool is no type of the device."""
    return value.reshape(-1).view(np.uint8)
