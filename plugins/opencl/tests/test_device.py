"""The device layer: the devices that are found, their descriptions, and errors if a device, or all of OpenCL, is
missing.

If this fails, a machine without OpenCL cannot use the engine, or one bad moment of a device ends an application.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.devices import device
from engine_opencl.devices.device import device_of, find_devices
from engine_opencl.devices.limits import check_limits
from engine_opencl.execution.context import Context
from engine_opencl.plan import Buffer, Launch
from engine_opencl.programs.programs import Programs

from engine import Core, ops
from engine.errors import DeviceError, DeviceNotFoundError, OutOfMemoryError
from engine.ir import Constant, Model, Parameter, f32
from engine.plugin_api import ExecutableNetwork

REPORT = """
import json, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # None hides a module
from engine import Core, ops
core = Core()
why = core.unavailable_devices
try:
    core.get_property("OPENCL", "FULL_DEVICE_NAME")
except Exception as e:
    raised = type(e).__name__
print(json.dumps([str(why.get("OPENCL")), core.available_devices, raised]))
"""


def report(*hidden: str, **environment: str) -> tuple[str, list[str], str]:
    """The report of a separate process on OPENCL."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *hidden],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    why, available, raised = json.loads(done.stdout)
    return why, available, raised


def test_without_a_runtime_the_rest_works(tmp_path: Path) -> None:
    why, available, raised = report(OCL_ICD_VENDORS=str(tmp_path))
    # pyopencl brings PoCL, where that is installed, to the loader by itself; it may know no such processor.
    assert "no OpenCL runtime is installed" in why or "can be used (pthread" in why
    assert "pip install engine-plugin-opencl[pocl]" in why
    assert not any(name.startswith("OPENCL") for name in available)
    assert "CPU" in available
    assert raised == "DeviceNotFoundError"


@pytest.mark.parametrize(
    ("platform", "kind", "counted", "units"),
    [
        ("Intel(R) OpenCL Graphics", cl.device_type.GPU, 512, 32),
        ("Intel(R) OpenCL HD Graphics", cl.device_type.GPU, 8, 1),
        ("Intel(R) OpenCL", cl.device_type.CPU, 64, 64),
        ("NVIDIA CUDA", cl.device_type.GPU, 132, 132),
    ],
)
def test_units_of_all_makes_are_alike(platform: str, kind: int, counted: int, units: int) -> None:
    """Intel counts execution units: kernels would be cut into far too many groups."""
    handle = SimpleNamespace(type=kind, max_compute_units=counted, platform=SimpleNamespace(name=platform))
    assert device._compute_units(handle) == units


def test_without_pyopencl_the_rest_works() -> None:
    why, available, _ = report("pyopencl")
    assert "pyopencl cannot be loaded" in why
    assert "CPU" in available


def test_a_runtime_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.icd").write_text("/nonexistent/libbroken.so\n")
    why, _, raised = report(OCL_ICD_VENDORS=str(tmp_path))
    assert "pip install" in why
    assert raised == "DeviceNotFoundError"


def test_no_platform_is_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cl, "get_platforms", fails("clGetPlatformIDs", -1001))  # PLATFORM_NOT_FOUND_KHR
    monkeypatch.setattr(device, "_found", [])
    with pytest.raises(DeviceNotFoundError, match=r"no OpenCL runtime is installed .*pip install"):
        find_devices()


def test_what_is_told_of_a_device() -> None:
    core, facts = Core(), find_devices()[0].facts
    assert core.get_property("OPENCL", "FULL_DEVICE_NAME") == facts.name
    assert core.get_property("OPENCL.0", "DEVICE_MEMORY") == facts.memory > 0
    assert core.get_property("OPENCL", "DRIVER_VERSION") == facts.driver
    told = core.get_property("OPENCL", "OPTIMIZATION_CAPABILITIES")
    assert {"FP32", "EXPORT_IMPORT"} <= set(told)
    extensions = find_devices()[0].handle.extensions.split()
    assert ("FP16" in told) == ("cl_khr_fp16" in extensions)


def test_devices_by_id_and_by_name() -> None:
    facts = find_devices()[0].facts
    assert device_of("0") is device_of("", facts.name[1:-1].lower()) is find_devices()[0]
    with pytest.raises(DeviceNotFoundError, match=rf"DEVICE_NAME 'Voodoo'; devices: 0: {re.escape(facts.name)}"):
        Core().compile_model(doubling(4), "OPENCL", {"DEVICE_NAME": "Voodoo"})
    with pytest.raises(DeviceNotFoundError, match="'9'"):
        Core().compile_model(doubling(4), "OPENCL.9")


# -- failures while it runs ---------------------------------------------------------------------------------


def doubling(length: int | str) -> Model:
    x = Parameter(f32, [length], "x")
    return Model([ops.Add(x, x)], [x])


def compiled(length: int | str = 16, **config: object) -> ExecutableNetwork:
    return Core().compile_model(doubling(length), "OPENCL", config)


def fails(call: str, code: int) -> Any:
    """A driver call that fails with a pyopencl error."""

    def failing(*_: object, **__: object) -> None:
        raise cl.RuntimeError(cl._cl._ErrorRecord(msg=f"{call} failed", code=code, routine=call))

    return failing


X = np.arange(16, dtype=np.float32)


@pytest.mark.parametrize("call", ["enqueue_copy", "enqueue_nd_range_kernel"])
def test_a_lost_device_is_an_error_and_the_request_can_be_used_again(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(find_devices()[0], "memory_kind", "staged")
    network = compiled()
    request = network.create_infer_request()
    with monkeypatch.context() as broken:
        broken.setattr(cl, call, fails(call, cl.status_code.OUT_OF_RESOURCES))
        with pytest.raises(DeviceError, match=rf"(?s){re.escape(find_devices()[0].facts.name)}.*failed while.*{call}"):
            request.infer([X])
    np.testing.assert_array_equal(request.infer([X])[0], 2 * X)


def test_a_device_lost_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    network = compiled()
    requests = [network.create_infer_request() for _ in range(2)]
    with monkeypatch.context() as broken:
        # The operation that is waited for fails, and so does the queue; afterwards, no context can be used.
        broken.setattr(cl.Event, "wait", fails("clWaitForEvents", cl.status_code.OUT_OF_RESOURCES))
        broken.setattr(cl.CommandQueue, "finish", fails("clFinish", cl.status_code.OUT_OF_RESOURCES))
        for request in requests:
            request.start_async([X])
        for request in requests:
            with pytest.raises(DeviceError, match="failed while computing"):
                request.wait(60)
    for request in requests:
        np.testing.assert_array_equal(request.infer([X])[0], 2 * X)


def test_memory_that_gives_out_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    network = compiled()
    with monkeypatch.context() as broken:
        code = cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE
        broken.setattr(cl, "enqueue_nd_range_kernel", fails("clEnqueueNDRangeKernel", code))
        with pytest.raises(OutOfMemoryError, match=r"ran out of memory while .* \d+ of \d+ bytes"):
            network([X])
    np.testing.assert_array_equal(network([X])[0], 2 * X)


def test_too_large_an_input_names_the_sizes_and_smaller_ones_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    network = compiled("n")
    first = find_devices()[0]
    monkeypatch.setattr(first, "facts", replace(first.facts, largest_buffer=4096))
    with pytest.raises(OutOfMemoryError, match=r"`x`: takes 40000 bytes; .* allows 4096 bytes"):
        network([np.zeros(10_000, np.float32)])
    np.testing.assert_array_equal(network([X])[0], 2 * X)


class Greedy:
    """A kernel with 64 bytes of local memory, which not every driver reports."""

    def get_work_group_info(self, parameter: int, device: object) -> int:
        return 64


def test_launches_over_the_limits_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_devices()[0]
    source = "__kernel void k(__global float* x) { x[get_global_id(0)] = 1; }"
    kernel = cl.Kernel(Programs(first).program(source), "k")
    wide = first.facts.max_work_group * 2
    with pytest.raises(DeviceError, match=rf"`k` of Add `a`.*groups of {wide} items.*allows \d+"):
        check_limits(first, Launch(source, "k", (), (wide,), (wide,), "a", "Add"), kernel)
    monkeypatch.setattr(first, "facts", replace(first.facts, local_bytes=16))
    with pytest.raises(DeviceError, match=r"needs 64 bytes of local memory; .* has 16"):
        check_limits(first, Launch(source, "k", (), (8,), (8,), "a", "Add"), Greedy())


LIMITS = [
    ({"max_work_items": (4, 4, 4)}, (8,), (8,), r"groups of \(8,\) items; .* allows at most \(4, 4, 4\)"),
    ({"address_bits": 32}, (1 << 16, 1 << 16), (), r"over \(65536, 65536\) items; .* has 32-bit sizes"),
    ({"argument_bytes": 15}, (8,), (), r"takes 16 bytes of arguments; .* allows 15"),
]


@pytest.mark.parametrize(("facts", "global_size", "local_size", "said"), LIMITS)
def test_launches_over_what_the_device_states(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    global_size: tuple[int, ...],
    local_size: tuple[int, ...],
    said: str,
) -> None:
    first = find_devices()[0]
    source = "__kernel void k(__global float* x, __global float* y) { x[0] = y[0]; }"
    kernel = cl.Kernel(Programs(first).program(source), "k")
    launch = Launch(source, "k", (Buffer(4), Buffer(4)), global_size, local_size, "a", "Add")
    if local_size or "argument_bytes" in facts:
        check_limits(first, launch, kernel)
    monkeypatch.setattr(first, "facts", replace(first.facts, **facts))
    with pytest.raises(DeviceError, match=rf"`k` of Add `a`.*{said}"):
        check_limits(first, launch, kernel)


def test_a_constant_that_no_buffer_holds_names_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_devices()[0]
    monkeypatch.setattr(first, "facts", replace(first.facts, largest_buffer=4096))
    x = Parameter(f32, [64], "x")
    large = Model([ops.MatMul(x, Constant(np.ones((64, 64), np.float32)))], [x])
    with pytest.raises(OutOfMemoryError, match=r"cannot allocate \d+ bytes for a constant: .* has 4096 bytes"):
        Core().compile_model(large, "OPENCL")
    np.testing.assert_array_equal(compiled()([X])[0], 2 * X)


def test_a_device_that_makes_no_queues_any_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    network = compiled("n")
    with monkeypatch.context() as broken:
        broken.setattr(cl, "CommandQueue", fails("clCreateCommandQueue", -36))  # INVALID_COMMAND_QUEUE
        with pytest.raises(DeviceError, match=r"creating queues and memory.*restart this process"):
            network([X])
    np.testing.assert_array_equal(network([X])[0], 2 * X)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_lengths_about_nothing(length: int) -> None:
    x = np.full(length, 3, np.float32)
    np.testing.assert_array_equal(compiled("n")([x])[0], 2 * x)


def test_nan_and_infinity_pass() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    np.testing.assert_array_equal(compiled(4)([x])[0], x + x)


# -- forks --------------------------------------------------------------------------------------------------


def _in_child(network: ExecutableNetwork, pipe: Any) -> None:
    said = []
    for attempt in (lambda: network([X]), lambda: compiled(), lambda: network([np.zeros(3, np.float32)])):
        try:
            attempt()
            said.append("no error")
        except Exception as e:
            said.append(f"{type(e).__name__}: {e}")
    pipe.send(said)


def test_a_fork_after_use_is_an_error_and_no_hang() -> None:
    network = compiled()
    np.testing.assert_array_equal(network([X])[0], 2 * X)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(network, there))
    child.start()
    assert here.poll(60)
    first, second, _ = here.recv()
    child.join(60)
    assert child.exitcode == 0
    for said in (first, second):
        assert said.startswith("DeviceError")
        assert "spawn" in said
    np.testing.assert_array_equal(network([X])[0], 2 * X)


def _count_in_child(owners: list[Any], pipe: Any) -> None:
    """How many of the objects with the driver's are still there when all that has them is gone."""
    network, context, tensor = owners
    held = [context for idle in network.pool._idle.values() for context in idle]
    references = [weakref.ref(each) for each in (*held, context.queue)]
    memory = tensor.memory
    owned = sys.getrefcount(memory)
    context.close()
    is_kept = sys.getrefcount(memory) == owned
    owners.clear()
    del network, context, tensor, held
    gc.collect()
    pipe.send([is_kept, *(reference() is not None for reference in references)])


def test_a_fork_releases_no_object_of_the_driver() -> None:
    """A driver whose threads are missing crashes when it releases something."""
    core = Core()
    context = core.create_context("OPENCL")
    owners = [compiled(), context, context.create_tensor(f32, [4])]
    owners[0]([X])
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_count_in_child, args=(owners, there))
    child.start()
    assert here.poll(60)
    assert here.recv() == [True, True, True]
    child.join(60)
    assert child.exitcode == 0


# -- profiles -------------------------------------------------------------------------------------------------


def test_kernels_are_on_the_clock_of_the_host() -> None:
    request = compiled(1 << 16, PERF_COUNT=True).create_infer_request()
    for _ in range(3):
        request.infer([np.ones(1 << 16, np.float32)])
        profile = request.profiling_info
        begin, end = min(s.start_ns for s in profile.stages), max(s.end_ns for s in profile.stages)
        assert profile.nodes
        for node in profile.nodes:
            assert begin <= node.start_ns
            assert node.start_ns + node.duration_ns <= end


def test_without_profiling_no_events_are_kept() -> None:
    network: Any = compiled()
    network([X])
    context: Context = network.pool.take([X])
    assert not context._computed
    assert not context.profiles()


def test_listing_devices_imports_no_compiler_and_creates_no_context() -> None:
    """Otherwise, every application that lists its devices waits for what only OPENCL's networks need."""
    program = """
import sys
from engine import Core
print("OPENCL" in {name.partition(".")[0] for name in Core().available_devices})
print([name for name in ("engine_opencl.lowering", "engine_opencl.network") if name in sys.modules])
from engine_opencl.devices.device import find_devices
print([device._context for device in find_devices() if device._context is not None])
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert output.splitlines() == ["True", "[]", "[]"]
