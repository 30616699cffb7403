"""`ContextQueue`: a context's own transfers, and their order with the commands in the application's queue."""

from __future__ import annotations

from typing import Any

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.devices.forks import keep_after_fork


class ContextQueue:
    """A queue for copies of tensors, beside the application's queue, if it gave one. Thread-safe."""

    def __init__(self, device: OpenclDevice, application_queue: Any) -> None:
        keep_after_fork(self)
        self._queue = device.new_queue()
        self._application_queue = application_queue

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        """Copy bytes between buffers, or a buffer and an array, and wait. Raises errors of pyopencl."""
        import pyopencl as cl

        if isinstance(target, cl.Buffer) and isinstance(source, cl.Buffer):
            cl.enqueue_copy(self._queue, target, source, byte_count=nbytes).wait()
        else:
            cl.enqueue_copy(self._queue, target, source, is_blocking=True)

    def wait_for_application(self) -> None:
        """Wait for the commands in the application's queue. Raises errors of pyopencl."""
        if self._application_queue is not None:
            self._application_queue.finish()

    def after_application(self) -> list[Any]:
        """Events after which all commands now in the application's queue have run; none without such a queue."""
        import pyopencl as cl

        if self._application_queue is None:
            return []
        event = cl.enqueue_marker(self._application_queue)
        self._application_queue.flush()
        return [event]
