"""`Context`: the memory and the bound kernels of one inference at a time over a plan."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.plugin_api import NodeProfile
from engine.startup import dataclass
from engine_opencl.devices.device import OpenclDevice, require_first_process
from engine_opencl.devices.driver_errors import Allocation, DriverErrors
from engine_opencl.devices.forks import keep_after_fork
from engine_opencl.devices.limits import check_limits
from engine_opencl.execution.faults import Faults
from engine_opencl.execution.kernels import new_kernel
from engine_opencl.memory import Arena, new_arena
from engine_opencl.memory.weights import Weights
from engine_opencl.plan import Buffer, Launch, LaunchPlan
from engine_opencl.remote.tensor import OpenclTensor

_FIRST_FLUSH = 8
"""The number of launches after which the queue is flushed: a driver may defer commands until then."""


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor that an output is written to; not `is_early` if it shares memory with an input."""

    index: int
    tensor: OpenclTensor
    is_early: bool


class Context:
    """Runs a plan, one inference at a time: upload, compute, wait, download, possibly on different threads in turn.

    Each context has a queue for its kernels, which some arenas (`Arena`) also use for transfers.
    """

    def __init__(self, device: OpenclDevice, plan: LaunchPlan, weights: Weights, *, profiling: bool) -> None:
        import pyopencl as cl

        keep_after_fork(self)
        self.plan = plan
        self._cl = cl
        self._device = device
        self._context, self._regions = device.context, device.in_place_regions
        self._profiling = profiling
        self._driver_errors = DriverErrors(device, plan.arena_bytes)
        with self._driver_errors("creating queues and memory"):
            self._queue = device.new_queue(profiling=profiling)
            self._arena: Arena = new_arena(device, plan, self._queue, profiling=profiling)
            self._faults = self._new_faults()
        self._held: dict[Buffer, Any] = {}
        self._users: dict[Buffer, list[tuple[Any, int]]] = {
            each: [] for each in (*plan.inputs, *plan.outputs) if isinstance(each, Buffer)
        }
        """The arguments of kernels that are inputs or outputs."""
        self._in_place: dict[Buffer, NDArray[np.uint8]] = {}
        self._bound_elsewhere: set[Buffer] = set()
        self._remote: list[Any] = []
        """The memory of tensors that kernels use, which they do not keep alive."""
        self._before: list[Any] = []
        self._copies: list[tuple[Any, Any, int]] = []
        self._copied: list[Any] = []
        self._left: frozenset[Buffer] = frozenset()
        """For an inference with tensors: the events that it waits for, its copies on the device (target, source, bytes)
        and their events, and the outputs that are not fetched.
        """
        self.copied_bytes = 0
        """The bytes of inputs that the last inference copied from the host."""
        with self._driver_errors("binding kernels"):
            self._steps = [self._step(launch, weights) for launch in plan.launches]
        self._outputs = plan.fetched
        kept = range(len(self._steps)) if profiling else range(len(self._steps))[-1:]
        self._kept = frozenset(kept)
        """Launches whose events are needed; holding an event costs a tenth of enqueueing the launch."""
        self._computed: dict[int, Any] = {}
        """Events by launch."""
        self._enqueued_ns = 0

    def _new_faults(self) -> Faults | None:
        if self.plan.fault_buffer is None:
            return None
        with Allocation(self._device, 8 * len(self.plan.faults), "the errors that kernels report"):
            found = self._arena.host_memory(8 * len(self.plan.faults)).view(np.int64)
            return Faults(self._context, self.plan.faults, found)

    @property
    def has_failed(self) -> bool:
        """Whether the device reported an error, after which its queues may be unusable."""
        return self._driver_errors.has_failed

    def _memory_of(self, buffer: Buffer, weights: Weights) -> Any:
        if buffer is self.plan.fault_buffer:
            assert self._faults is not None
            return self._faults.memory
        if buffer.weight is not None:
            # Kernels do not keep their arguments alive, and `weights` keeps only the arguments of some plans.
            memory = weights.buffer(buffer.weight, self.plan.weights[buffer.weight])
            return self._held.setdefault(buffer, memory)
        return self._arena.part(buffer)

    def _step(self, launch: Launch, weights: Weights) -> tuple[Any, ...]:
        """The arguments of `enqueue_nd_range_kernel` after the queue."""
        kernel = new_kernel(self.plan.programs[launch.source], launch.entry)
        check_limits(self._device, launch, kernel)
        for position, argument in enumerate(launch.arguments):
            kernel.set_arg(position, self._memory_of(argument, weights) if isinstance(argument, Buffer) else argument)
            if isinstance(argument, Buffer) and argument in self._users:
                self._users[argument].append((kernel, position))
        return kernel, launch.global_size, launch.local_size or None

    # -- one inference ------------------------------------------------------------------------------------

    def upload(self, values: Sequence[Any], targets: Sequence[Target] = ()) -> None:
        """Bring the inputs to the device; the arrays must not change until `wait`.

        Inputs that are tensors, and the tensors of outputs, are bound to the kernels.
        """
        used = [
            (buffer, value)
            for buffer, value in zip(self.plan.inputs, values, strict=True)
            if buffer is not None and value.nbytes
        ]
        given = [(buffer, _bytes(value)) for buffer, value in used if not isinstance(value, OpenclTensor)]
        tensors = [(buffer, value) for buffer, value in used if isinstance(value, OpenclTensor)]
        self._arena.begin()
        with self._driver_errors("uploading inputs"):
            copied = [each for each in given if not self._is_read_in_place(*each)]
            self.copied_bytes = sum(value.nbytes for _, value in copied)
            if tensors or targets or self._bound_elsewhere:
                self._bind_tensors(tensors, targets)
            self._arena.upload(copied)

    def _bind_tensors(self, tensors: Sequence[tuple[Buffer, OpenclTensor]], targets: Sequence[Target]) -> None:
        """Bind tensors to kernels, or have them copied on the device where they cannot be bound."""
        # All are checked first: if a context is closed, which is an error, the bindings must not change.
        given = [(buffer, tensor.memory, tensor.nbytes) for buffer, tensor in tensors]
        taken = [(target, target.tensor.memory, target.tensor.nbytes) for target in targets if target.tensor.nbytes]
        for queue in [tensor.queue for _, tensor in tensors] or [target.tensor.queue for target in targets]:
            self._before = queue.after_application()
            break  # all belong to one context
        self._remote = [memory for _, memory, _ in (*given, *taken)]
        outputs = self.plan.outputs
        bound = set(self._in_place)
        for buffer, memory, nbytes in given:
            if buffer in self._outputs:  # it is also fetched as an output
                self._copy_to_arena(buffer, memory.buffer, nbytes)
            else:
                self._bind(buffer, memory.buffer)
                bound.add(buffer)
        for target, memory, nbytes in taken:
            output = outputs[target.index]
            assert isinstance(output, Buffer)
            if target.is_early and sum(each is output for each in outputs) == 1 and output not in self.plan.inputs:
                self._bind(output, memory.buffer)
                bound.add(output)
            else:
                self._copies.append((memory.buffer, output, nbytes))
        for buffer in self._bound_elsewhere - bound:
            self._bind(buffer, self._arena.part(buffer))
        self._bound_elsewhere = bound
        kept = {target.index for target in targets}
        fetched = {each for index, each in enumerate(outputs) if isinstance(each, Buffer) and index not in kept}
        self._left = frozenset(self._outputs.keys() - fetched - set(self.plan.counts))

    def _copy_to_arena(self, buffer: Buffer, memory: Any, nbytes: int) -> None:
        part, before = self._arena.part(buffer), self._before
        event = self._cl.enqueue_copy(self._queue, part, memory, byte_count=nbytes, wait_for=before)
        self._queue.flush()
        self._copied.append(event)
        self._arena.uploads.append(event)

    def _is_read_in_place(self, buffer: Buffer, value: NDArray[np.uint8]) -> bool:
        """Bind an input to be read in place, if that is possible and worthwhile."""
        memory = self._regions.acquire(self._context, value) if self._can_be_read_in_place(buffer) else None
        if memory is not None:
            self._in_place[buffer] = value
            self._bound_elsewhere.add(buffer)
            self._bind(buffer, memory)
        elif buffer in self._bound_elsewhere:
            self._bound_elsewhere.remove(buffer)
            self._bind(buffer, self._arena.part(buffer))
        return memory is not None

    def _can_be_read_in_place(self, buffer: Buffer) -> bool:
        # An input that is also an output is fetched from the arena.
        return self._arena.reads_in_place and buffer not in self._outputs

    def _bind(self, buffer: Buffer, memory: Any) -> None:
        for kernel, position in self._users[buffer]:
            kernel.set_arg(position, memory)

    def compute(self, check_cancelled: Callable[[], None]) -> None:
        """Enqueue all kernels after the uploads, and the output transfers after the kernels."""
        enqueue, queue, kept = self._cl.enqueue_nd_range_kernel, self._queue, self._kept
        self._computed = events = {}
        with self._driver_errors("enqueueing kernels"):
            # The kernels' queue is in-order, and so is the queue of uploads.
            uploaded = [] if self._arena.uploads_in_order else self._arena.uploads[-1:]
            if uploaded or self._before:
                self._cl.enqueue_barrier(queue, wait_for=[*uploaded, *self._before])
            if self._faults is not None:
                self._faults.begin(queue)
            self._enqueued_ns = time.perf_counter_ns()
            for number, step in enumerate(self._steps):
                check_cancelled()
                event = enqueue(queue, *step)
                if number in kept:
                    events[number] = event
                if number == _FIRST_FLUSH:
                    queue.flush()
            if self._faults is not None:
                self._faults.fetch(queue)
            for memory, buffer, nbytes in self._copies:
                source = self._arena.part(buffer)
                self._copied.append(self._cl.enqueue_copy(queue, memory, source, byte_count=nbytes))
            queue.flush()
            self._arena.fetch([buffer for buffer in self._outputs if buffer not in self._left])

    def wait(self) -> None:
        """Wait for the kernels. Raises `DeviceError` if the device failed, `InputError` for an index out of range."""
        with self._driver_errors("computing"):
            # Waiting for an event reports a failed kernel, which `finish` need not; and `finish` of some drivers does
            # not wait for commands flushed before (Mesa 22.3).
            if self._steps:
                self._computed[len(self._steps) - 1].wait()
            for event in self._copied:
                event.wait()
            if self._faults is not None:
                self._faults.wait()
        if self._faults is not None:
            self._faults.check()

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an output; one that is counted has it after `wait`."""
        most, count = self.plan.shapes[index], self.plan.counts[index]
        if count is None:
            return most
        found = np.empty(1, np.int64)
        with self._driver_errors("fetching outputs"):
            self._arena.take(count, _bytes(found))
        axis = self.plan.count_axes[index]
        return (*most[:axis], int(found[0]), *most[axis + 1 :])

    def download(self, index: int, target: NDArray[Any]) -> None:
        """Fetch an output into a contiguous array of its shape."""
        buffer = self.plan.outputs[index]
        assert isinstance(buffer, Buffer)
        if target.nbytes:
            with self._driver_errors("fetching outputs"):
                self._arena.take(buffer, _bytes(target))

    def release(self) -> None:
        """Release the inputs, which belong to the user, and the state of the inference."""
        self._release_inputs()
        with self._driver_errors("returning outputs"):
            self._arena.release()
        if not self._profiling:
            self._computed = {}

    def _release_inputs(self) -> None:
        for value in self._in_place.values():
            self._regions.release(value)
        self._in_place.clear()
        self._remote, self._before, self._copies, self._copied = [], [], [], []
        self._left = frozenset()

    def drain(self) -> None:
        """Wait until all commands of an inference have ended. Raises `DeviceError`."""
        try:
            with self._driver_errors("ending an inference early"):
                for event in self._computed.values():
                    event.wait()
                self._queue.finish()
                self._arena.finish()
        finally:
            self._release_inputs()
        if self._faults is not None:
            self._faults.is_clear = False

    def __del__(self) -> None:
        # In an order that all drivers survive: events and kernels before the memory that they use, queues last.
        with contextlib.suppress(Exception):  # a finalizer cannot report that the device was lost
            self._close()

    def _close(self) -> None:
        require_first_process()
        self._computed, self._copied, self._before, self._copies = {}, [], [], []
        self._queue.finish()
        self._users.clear()
        self._steps = []
        self._arena.close()
        self._held, self._faults = {}, None

    # -- profiles -----------------------------------------------------------------------------------------

    def profiles(self) -> list[NodeProfile]:
        """When each kernel of the last inference ran, on the host's clock (`time.perf_counter_ns`)."""
        spans = self._on_host_clock(list(self._computed.values()))
        return [
            NodeProfile(launch.node, launch.op_type, "native", start, end - start, launch.kernel, live_bytes=live)
            for launch, live, (start, end) in zip(self.plan.launches, self.plan.live_bytes, spans, strict=False)
        ]

    def upload_spans(self) -> list[tuple[int, int]]:
        """When inputs of the last inference were transferred, on the clock of `profiles`.

        First the copies by the host, then, with profiling, those by queues.
        """
        return [*self._arena.copied, *self._on_host_clock(self._arena.uploads if self._profiling else ())]

    def _on_host_clock(self, events: Sequence[Any]) -> list[tuple[int, int]]:
        """Convert device time, which has another origin, using the time at which the first kernel was enqueued."""
        if not self._computed:
            return []
        offset = self._enqueued_ns - self._computed[0].profile.queued
        return [(event.profile.start + offset, event.profile.end + offset) for event in events]


def _bytes(value: Any) -> Any:
    """An array for pyopencl: bool is not a device type."""
    return value.reshape(-1).view(np.uint8)
