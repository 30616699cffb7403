"""Tests whether a device computes correctly, and which of its claimed kinds of memory access work.

Run as a script in a child process, which a driver may crash, with one line of JSON as request and one as answer. It
imports nothing of the engine, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

SOURCE = """
__kernel void check(__global const int* x, __global int* y) {
  const size_t i = get_global_id(0);
  const long wide = x[i];
  y[i] = 3 * x[i] + (int)i + (wide < 0 ? 1 : 0);
}
"""
"""Compares like kernels that read by index: Mesa 22.3 mishandles negative integers that are widened."""
ITEMS = 4096


def main() -> None:
    """Check the device that a line of JSON on standard input names, and print the result as JSON."""
    # Drivers print to standard output, which must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    sys.path[:] = asked["paths"]
    import pyopencl as cl

    device = cl.get_platforms()[asked["platform"]].get_devices()[asked["device"]]
    answers.write(json.dumps(checked(device)) + "\n")
    answers.flush()


def checked(device: Any, new_kernel: Callable[[Any, str], Any] | None = None) -> dict[str, str]:
    """`failed`: why the device is unusable, or otherwise `memory`: as in `OpenclDevice.memory_kind`.

    `new_kernel`: creates a kernel of a program; by default with pyopencl.
    """
    import pyopencl as cl

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            return _Check(cl, device, new_kernel or cl.Kernel).run()
    except cl.Error as e:
        return {"failed": " ".join(str(e).split())[-300:]}


class _Check:
    def __init__(self, cl: Any, device: Any, new_kernel: Callable[[Any, str], Any]) -> None:
        self.cl, self.device = cl, device
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        uncached: Any = False
        self.kernel = new_kernel(cl.Program(self.context, SOURCE).build(cache_dir=uncached), "check")

    def run(self) -> dict[str, str]:
        if (wrong := self._differs(self._staged)) is not None:
            return {"failed": f"a minimal test kernel gives wrong results: {wrong}"}
        kinds: list[tuple[str, bool, Callable[[Any], Any]]] = [
            ("shared", self._claims_fine_grain(), self._shared),
            ("mapped", True, self._mapped),
        ]
        for kind, is_claimed, way in kinds:
            if self.device.host_unified_memory and is_claimed and self._holds(way):
                return {"memory": kind}
        return {"memory": "staged"}

    def _claims_fine_grain(self) -> bool:
        try:
            claimed = self.device.svm_capabilities
        except self.cl.Error:  # before OpenCL 2.0
            return False
        return bool(claimed & self.cl.device_svm_capabilities.FINE_GRAIN_BUFFER)

    def _holds(self, way: Callable[[Any], Any]) -> bool:
        try:
            return self._differs(way) is None
        except self.cl.Error:
            return False

    def _differs(self, way: Callable[[Any], Any]) -> str | None:
        """The error of one way of memory access, or None; run twice, since a stale copy shows only the second time."""
        import numpy as np

        run = way(np.arange(ITEMS, dtype=np.int32))
        for step in (1, -7):
            x = np.arange(ITEMS, dtype=np.int32) * step
            expected = 3 * x + np.arange(ITEMS, dtype=np.int32) + (x < 0)
            found = run(x)
            if not np.array_equal(found, expected):
                at = int(np.flatnonzero(found != expected)[0])
                return f"got {found[at]} for item {at}, expected {expected[at]}"
        return None

    def _launched(self, x: Any, y: Any) -> Any:
        self.kernel.set_args(x, y)
        event = self.cl.enqueue_nd_range_kernel(self.queue, self.kernel, (ITEMS,), None)
        self.queue.flush()
        return event

    def _staged(self, like: Any) -> Callable[[Any], Any]:
        cl, np = self.cl, _numpy()
        x, y = (cl.Buffer(self.context, cl.mem_flags.READ_WRITE, like.nbytes) for _ in range(2))

        def run(values: Any) -> Any:
            cl.enqueue_copy(self.queue, x, values)
            found = np.zeros_like(values)
            event = self._launched(x, y)
            cl.enqueue_copy(self.queue, found, y, wait_for=[event])
            return found

        return run

    def _shared(self, like: Any) -> Callable[[Any], Any]:
        """Use both halves of one allocation, as an inference does in its arena."""
        cl, np = self.cl, _numpy()
        host = cl.fsvm_empty(self.context, 2 * ITEMS, np.int32)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        memory = cl.Buffer(self.context, flags, hostbuf=host)
        x, y = (memory.get_sub_region(start, like.nbytes) for start in (0, like.nbytes))

        def run(values: Any) -> Any:
            host[:ITEMS] = values
            self._launched(x, y).wait()
            return host[ITEMS:].copy()

        return run

    def _mapped(self, like: Any) -> Callable[[Any], Any]:
        cl, np = self.cl, _numpy()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        memory = cl.Buffer(self.context, flags, 2 * like.nbytes)
        x, y = (memory.get_sub_region(start, like.nbytes) for start in (0, like.nbytes))

        def run(values: Any) -> Any:
            invalidate = cl.map_flags.WRITE_INVALIDATE_REGION
            view, _ = cl.enqueue_map_buffer(self.queue, x, invalidate, 0, ITEMS, np.int32)
            view[:] = values
            view.base.release(self.queue)
            self._launched(x, y)
            view, _ = cl.enqueue_map_buffer(self.queue, y, cl.map_flags.READ, 0, ITEMS, np.int32)
            found = view.copy()
            view.base.release(self.queue)
            self.queue.finish()
            return found

        return run


def _numpy() -> Any:
    import numpy

    return numpy


if __name__ == "__main__":
    main()
