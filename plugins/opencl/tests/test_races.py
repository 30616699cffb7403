"""Oclgrind, where the tests run on it, reports the faults that it is used for; see `conftest.py`.

If this fails, races and accesses out of bounds in kernels of GPUs, which do not show on CPUs, are no longer found.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.devices.device import device_of

KERNELS = {
    "Read-write data race": "__kernel void f(__global float* x) { __local float s[64]; const int i = get_local_id(0); "
    "s[i] = x[i]; x[i] = s[63 - i]; }",
    "Invalid read": "__kernel void f(__global float* x) { x[get_global_id(0)] = x[get_global_id(0) + 1]; }",
    "Invalid write": "__kernel void f(__global float* x) { __local float s[60]; s[get_local_id(0)] = x[0]; "
    "barrier(CLK_LOCAL_MEM_FENCE); x[get_local_id(0)] = s[0]; }",
}


@pytest.mark.skipif("OCLGRIND_LOG" not in os.environ, reason="the tests do not run on Oclgrind: see CONTRIBUTING.md")
@pytest.mark.parametrize("fault", KERNELS)
def test_faults_are_reported(fault: str, tmp_path: Path, what_oclgrind_reports: None) -> None:
    log = Path(os.environ["OCLGRIND_LOG"])
    before = log.read_text(encoding="utf-8") if log.exists() else ""
    device = device_of("0")
    context = device.context
    program = cl.Program(context, KERNELS[fault]).build(cache_dir=False)
    buffer = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(64, np.float32))
    queue = device.new_queue()
    kernel = cl.Kernel(program, "f")
    kernel.set_args(buffer)
    cl.enqueue_nd_range_kernel(queue, kernel, (64,), (64,))
    queue.finish()
    reported = log.read_text(encoding="utf-8")[len(before) :]
    log.write_text(before, encoding="utf-8")
    assert fault in reported
