"""Translation of driver errors to engine errors."""

from __future__ import annotations

from engine.errors import DeviceError, OutOfMemoryError
from engine_opencl.devices.device import OpenclDevice


class Allocation:
    """Turns driver errors of one allocation into `OutOfMemoryError` with its size."""

    def __init__(self, device: OpenclDevice, nbytes: int, what: str) -> None:
        self.device, self.nbytes, self.what = device, nbytes, what

    def __enter__(self) -> None:
        if self.nbytes > self.device.facts.largest_buffer:
            raise self._error(f"the largest buffer that it allows has {self.device.facts.largest_buffer} bytes")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyopencl as cl

        if isinstance(error, cl.Error):
            raise self._error(str(error)) from error

    def _error(self, why: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"OPENCL: {self.device.facts.name} ({self.device.facts.memory} bytes) cannot allocate {self.nbytes} bytes "
            f"for {self.what}: {why}; use smaller inputs or fewer requests, or place some nodes on another device with "
            "HETERO"
        )


class DriverErrors:
    """Turns driver errors into `DeviceError`, or `OutOfMemoryError`, since drivers may allocate lazily.

    `with driver_errors("uploading inputs"): ...` names the failed action.
    """

    def __init__(self, device: OpenclDevice, arena_bytes: int) -> None:
        self._device, self._arena_bytes = device, arena_bytes
        self._what = ""
        self.has_failed = False

    def __call__(self, what: str) -> DriverErrors:
        """Set the action of the block that follows, for messages."""
        self._what = what
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
                f"OPENCL: {name} ran out of memory while {self._what}; intermediate values take "
                f"{self._arena_bytes} of {self._device.facts.memory} bytes: {error}"
            ) from error
        raise DeviceError(
            f"OPENCL: {name} failed while {self._what}: {error}; the next inference starts with new queues and "
            "memory; if it also fails, restart this process"
        ) from error
