"""How inputs and outputs get to a device and back, on devices of every kind of memory, as which this one poses.

If this fails, users of some GPU get the answer to another request, or wait for transfers that kernels could hide.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.devices.device import OpenclDevice, find_devices
from engine_opencl.devices.device_check import MEMORY_KINDS
from engine_opencl.devices.in_place import MIN_BYTES, InPlaceRegions
from engine_opencl.execution import context as context_module
from engine_opencl.execution.context import Context
from engine_opencl.execution.pool import ContextPool
from engine_opencl.memory import staged

from engine import Core, ops
from engine.errors import Cancelled, DeviceError, InputError, OutOfMemoryError
from engine.ir import Constant, Model, Parameter, boolean, f32, i64
from engine.plugin_api import ExecutableNetwork


@pytest.fixture
def device() -> OpenclDevice:
    return find_devices()[0]


@pytest.fixture(params=MEMORY_KINDS)
def kind(request: pytest.FixtureRequest, device: OpenclDevice, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind, which is right on every device whose memory is the host's."""
    if MEMORY_KINDS.index(request.param) < MEMORY_KINDS.index(device.memory_kind):
        pytest.skip(f"{device.facts.name} has memory of the kind `{device.memory_kind}`")
    monkeypatch.setattr(device, "memory_kind", request.param)
    return str(request.param)


def aligned(length: int, offset: int = 0) -> np.ndarray:
    """[length] float32, `offset` elements after a multiple of 128 bytes, where every driver reads it in place."""
    memory = np.zeros(length + 96, np.float32)
    start = -memory.ctypes.data % 128 // 4 + offset
    return memory[start : start + length]


def compiled(model: Model, **config: object) -> Any:
    return Core().compile_model(model, "OPENCL", config)


def doubling(length: int | str) -> Model:
    x = Parameter(f32, [length], "x")
    return Model([ops.Add(x, x)], [x])


def products(rows: int, count: int) -> Model:
    x = Parameter(f32, [rows, 256], "x")
    weights = Constant(np.full((256, 256), 1 / 256, np.float32))
    value: Any = x
    for _ in range(count):
        value = ops.MatMul(value, weights)
    return Model([value], [x])


# -- values -----------------------------------------------------------------------------------------------------


def test_inputs_that_change_their_place_between_inferences(kind: str) -> None:
    """Read in place, copied, and read in place again: never the input of an earlier inference."""
    length = MIN_BYTES // 2
    network = compiled(doubling(length))
    for number, offset in enumerate((0, 1, 4, 3, 32, 0, 2)):
        x = aligned(length, offset)
        x[:] = number
        np.testing.assert_array_equal(network([x])[0], np.full(length, 2 * number, np.float32))


def test_an_output_that_is_the_input_in_another_shape(kind: str) -> None:
    x = Parameter(f32, [256, 256], "x")
    network = compiled(Model([ops.Reshape(x, Constant(np.array([-1]), i64)), ops.Relu(x)], [x]))
    given = aligned(1 << 16).reshape(256, 256)
    for number in (-1.0, 2.0):
        given[:] = number
        first, second = network([given]).values()
        np.testing.assert_array_equal(first, given.reshape(-1))
        np.testing.assert_array_equal(second, np.maximum(given, 0))


def test_several_inputs_and_outputs_of_several_types(kind: str) -> None:
    x, n, b = Parameter(f32, [3, 5], "x"), Parameter(i64, [7], "n"), Parameter(boolean, [3], "b")
    network = compiled(Model([ops.Add(n, n), ops.Mul(x, x), ops.Not(b), ops.Relu(ops.Mul(x, x))], [x, n, b]))
    for seed in range(3):
        random = np.random.default_rng(seed)
        given = random.random((3, 5), np.float32), random.integers(-9, 9, 7), random.random(3) < 0.5
        doubled, squared, inverse, again = network(list(given)).values()
        np.testing.assert_array_equal(doubled, 2 * given[1])
        np.testing.assert_array_equal(squared, given[0] ** 2)
        np.testing.assert_array_equal(inverse, ~given[2])
        np.testing.assert_array_equal(again, squared)


@pytest.mark.parametrize("length", [0, 1, 999, 1000, 1001, 4000])
def test_values_of_no_piece_one_piece_and_many(kind: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "_PIECE_BYTES", 4000)
    x = np.arange(length, dtype=np.float32)
    out = np.full(length, 7, np.float32)
    request = compiled(doubling("n")).create_infer_request()
    request.set_output_tensor(0, out)
    np.testing.assert_array_equal(request.infer([x])[0], 2 * x)
    np.testing.assert_array_equal(out, 2 * x)


def test_eight_requests_in_flight_with_inputs_of_their_own(kind: str) -> None:
    network = compiled(products(64, 4))
    given = [np.full((64, 256), number, np.float32) for number in range(8)]
    requests = [network.create_infer_request() for _ in given]
    for _ in range(3):
        for request, x in zip(requests, given, strict=True):
            request.start_async([x])
        for number, request in enumerate(requests):
            request.wait(60)
            np.testing.assert_allclose(request.results[0], np.full((64, 256), number), rtol=1e-5)


def test_eight_requests_in_flight_with_the_same_input(kind: str) -> None:
    network = compiled(products(64, 4))
    x = aligned(64 * 256).reshape(64, 256)
    x[:] = 3
    requests = [network.create_infer_request() for _ in range(8)]
    for request in requests:
        request.start_async([x])
    for request in requests:
        request.wait(60)
        np.testing.assert_allclose(request.results[0], np.full((64, 256), 3), rtol=1e-5)


# -- what is kept and let go ------------------------------------------------------------------------------------


def contexts(network: Any) -> list[Context]:
    return [context for idle in network.pool._idle.values() for context in idle]


def test_memory_is_used_again(kind: str) -> None:
    network = compiled(doubling(16))
    before = contexts(network)
    for number in range(5):
        np.testing.assert_array_equal(network([np.full(16, number, np.float32)])[0], np.full(16, 2.0 * number))
    assert contexts(network) == before
    assert len(before) == 1


def test_an_input_is_let_go(kind: str) -> None:
    x = aligned(1 << 18)
    request = compiled(doubling(x.size)).create_infer_request()
    before = sys.getrefcount(x)
    request.infer([x])
    request.clear_tensors()
    assert sys.getrefcount(x) == before
    assert not find_devices()[0].in_place_regions._in_use


def test_regions_that_are_read_in_place(device: OpenclDevice) -> None:
    """Buffers in overlapping memory are undefined: equal regions share one, others are copied."""
    regions, memory = InPlaceRegions(), aligned(4 * MIN_BYTES // 4).view(np.uint8)
    first, second, across = (memory[start : start + MIN_BYTES] for start in (0, MIN_BYTES, 64))
    shared = regions.acquire(device.context, first)
    assert shared is not None
    assert regions.acquire(device.context, first) is shared
    assert regions.acquire(device.context, across) is None
    assert regions.acquire(device.context, second) is not None
    regions.release(first)
    assert regions.acquire(device.context, across) is None
    regions.release(first)
    regions.release(second)
    assert regions.acquire(device.context, across) is not None
    assert regions.acquire(device.context, memory[1 : 1 + MIN_BYTES]) is None
    assert regions.acquire(device.context, memory[: MIN_BYTES - 1]) is None


# -- failures ---------------------------------------------------------------------------------------------------


def failing_after(count: int, call: Callable[..., Any], code: int) -> Callable[..., Any]:
    """A driver's call that fails from its `count`-th time on."""
    left = [count]

    def failing(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise cl.RuntimeError(cl._cl._ErrorRecord(msg="failed", code=code, routine=call.__name__))
        return call(*given, **named)

    return failing


@pytest.mark.parametrize("call", ["enqueue_copy", "enqueue_map_buffer", "enqueue_barrier", "enqueue_nd_range_kernel"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_failure_at_any_step_leaves_a_network_that_can_be_used(
    kind: str, call: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = Parameter(f32, [512], "x"), Parameter(f32, [512], "y")
    network = compiled(Model([ops.MatMul(ops.Add(x, y), y), ops.Sub(x, y)], [x, y]))
    given = [np.full(512, 3, np.float32), np.full(512, 1, np.float32)]

    def check(found: Any) -> None:
        np.testing.assert_allclose(found[0], 512 * 4)
        np.testing.assert_array_equal(found[1], np.full(512, 2))

    request = network.create_infer_request()
    check(request.infer(given))
    with monkeypatch.context() as broken:
        broken.setattr(cl, call, failing_after(count, getattr(cl, call), cl.status_code.OUT_OF_RESOURCES))
        with contextlib.suppress(DeviceError):  # not every kind of memory makes every call
            check(request.infer(given))
    for _ in range(2):
        check(request.infer(given))
    assert not find_devices()[0].in_place_regions._in_use


def test_a_lost_device_that_unmaps_nothing_does_not_end_the_process(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyopencl would unmap in a destructor, where a driver error terminates the process."""
    network = compiled(doubling(16))
    given = np.ones(16, np.float32)
    network([given])
    lost = cl.status_code.OUT_OF_RESOURCES
    with monkeypatch.context() as broken:
        broken.setattr(cl.Event, "wait", failing_after(0, cl.Event.wait, lost))
        broken.setattr(cl.CommandQueue, "finish", failing_after(0, cl.CommandQueue.finish, lost))
        broken.setattr(cl.MemoryMap, "release", failing_after(0, cl.MemoryMap.release, lost))
        with pytest.raises(DeviceError):
            network([given])
        gc.collect()
    gc.collect()
    np.testing.assert_array_equal(network([given])[0], 2 * given)


def test_requests_that_are_cancelled(kind: str) -> None:
    network = compiled(products(512, 4))
    given = [np.full((512, 256), number, np.float32) for number in range(8)]
    requests = [network.create_infer_request() for _ in given]
    for _ in range(2):
        for request, x in zip(requests, given, strict=True):
            request.start_async([x])
        for request in requests[1::2]:
            request.cancel()
        for number, request in enumerate(requests):
            try:
                request.wait(60)
            except Cancelled:
                assert number % 2
            else:
                np.testing.assert_allclose(request.results[0], np.full((512, 256), number), rtol=1e-5)
    np.testing.assert_allclose(network([given[5]])[0], given[5], rtol=1e-5)


def test_an_index_that_is_out_of_range_is_of_one_inference_only(kind: str) -> None:
    x, n = Parameter(f32, [4, 3], "x"), Parameter(i64, [2], "n")
    network = compiled(Model([ops.Gather(x, n, axis=0)], [x, n]))
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    for _ in range(2):
        with pytest.raises(InputError, match="index 4 is out of range"):
            network([values, np.array([0, 4])])
        np.testing.assert_array_equal(network([values, np.array([3, 1])])[0], values[[3, 1]])


# -- overlap ----------------------------------------------------------------------------------------------------


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[tuple[int, int]], tuple[int, int]]]:
    """For each inference that ends when its uploads and its kernels ran."""
    if not find_devices()[0].handle.profiling_timer_resolution:
        pytest.skip("the device has no clock")
    found: list[tuple[list[tuple[int, int]], tuple[int, int]]] = []
    put = ContextPool.put

    def recording(pool: ContextPool, context: Context) -> None:
        nodes = context.profiles()
        if nodes:
            found.append((context.upload_spans(), (nodes[0].start_ns, nodes[-1].start_ns + nodes[-1].duration_ns)))
        put(pool, context)

    monkeypatch.setattr(ContextPool, "put", recording)
    return found


@pytest.mark.parametrize("kind", ["shared", "staged"], indirect=True)
def test_uploads_overlap_the_kernels_of_other_requests(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the events of kernels and of uploads, which are the host's work, also, where it fills staging memory.

    Mapping is the work of a queue, which on a CPU may wait for all kernels.
    """
    network: ExecutableNetwork = compiled(products(1024, 8), PERF_COUNT=True)
    spans = recorded(monkeypatch)
    # Off the alignment at which an input is read where it is.
    given = aligned(1024 * 256, 1).reshape(1024, 256)
    requests = [network.create_infer_request() for _ in range(8)]
    end = time.monotonic() + 120
    while time.monotonic() < end:  # on a busy machine a thread may get no core for as long as the kernels run
        spans.clear()
        for request in requests:
            request.start_async([given])
        for request in requests:
            request.wait(60)
        assert len(spans) == len(requests)
        assert all(uploads for uploads, _ in spans)
        if any(
            begun <= start <= end <= ended
            for uploads, own in spans
            for start, end in uploads
            for _, (begun, ended) in spans
            if (begun, ended) != own
        ):
            return
    pytest.fail("no upload of a request lay within the kernels of another")


def test_kernels_wait_for_uploads_and_downloads_for_kernels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their events: transfers by a queue end before the data is read."""
    monkeypatch.setattr(staged, "_PIECE_BYTES", 1 << 16)
    network: ExecutableNetwork = compiled(products(1024, 2), PERF_COUNT=True)
    spans = recorded(monkeypatch)
    request = network.create_infer_request()
    for _ in range(3):
        request.infer([aligned(1024 * 256, 1).reshape(1024, 256)])
    for uploads, (begun, _) in spans:
        assert len(uploads) >= (1 + 16 if kind == "staged" else 1)
        assert all(start <= end <= begun for start, end in uploads)


def test_no_thread_copies_when_a_failed_inference_has_ended(
    device: OpenclDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staging memory is then unmapped, and an output's array is the user's again."""
    monkeypatch.setattr(device, "memory_kind", "staged")
    monkeypatch.setattr(staged, "_THREADS", 4)
    request = compiled(doubling(8 << 18)).create_infer_request()
    request.infer([np.zeros(8 << 18, np.float32)])
    calls, active = [], []
    begin, enqueue = staged._submitted, cl.enqueue_copy

    def submitted(copy: Callable[[int], None], count: int) -> Any:
        def slow(number: int) -> None:
            active.append(number)
            time.sleep(0.05)
            copy(number)
            active.remove(number)

        return begin(slow, count)

    def failing(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise cl.RuntimeError(cl._cl._ErrorRecord(msg="lost", code=-36, routine="enqueue_copy"))
        return enqueue(*given, **named)

    monkeypatch.setattr(staged, "_submitted", submitted)
    monkeypatch.setattr(cl, "enqueue_copy", failing)
    with pytest.raises(DeviceError, match="lost"):
        request.infer([np.ones(8 << 18, np.float32)])
    assert not active


def test_large_inputs_are_copied_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    """From then on, no threads are started."""
    code = f"""
import atexit, sys
import numpy as np
from engine import Core, ops
from engine.ir import Model, Parameter, f32
from engine_opencl.devices.device import device_of
device_of("0").memory_kind = "staged"
x = Parameter(f32, [1 << 20])
network = Core().compile_model(Model([ops.Add(x, x)], [x]), "OPENCL")
value = np.ones(1 << 20, np.float32)
network([value])
def late():
    open({str(tmp_path / "found")!r}, "w").write(str(float(network([value])[0].sum())))
atexit.register(late)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert float((tmp_path / "found").read_text(encoding="utf-8")) == 2 << 20


@pytest.mark.parametrize("shares_memory", [False, True])
def test_values_may_take_more_than_one_buffer_can_hold(
    device: OpenclDevice, monkeypatch: pytest.MonkeyPatch, shares_memory: bool
) -> None:
    """In a device's own memory; where the host computes, they are parts of one buffer."""
    monkeypatch.setattr(device, "memory_kind", "staged")
    limited = replace(device.facts, shares_memory=shares_memory, largest_buffer=300_000)
    monkeypatch.setattr(device, "facts", limited)
    if shares_memory:
        with pytest.raises(OutOfMemoryError, match="with all other values of its plan: takes"):
            compiled(products(256, 4))
        return
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    expected = np.repeat(x.mean(axis=1, dtype=np.float64)[:, None], 256, axis=1)
    np.testing.assert_allclose(compiled(products(256, 4))([x])[0], expected, rtol=0, atol=1e-5)


def test_memory_of_inputs_of_other_shapes_makes_room(device: OpenclDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    network = compiled(doubling("n"))
    small, large = np.arange(16, dtype=np.float32), np.arange(512, dtype=np.float32)
    network([small])
    refused = []
    allocate = context_module.new_arena

    def scarce(*given: Any, **named: Any) -> Any:
        if contexts(network):
            refused.append(given)
            raise OutOfMemoryError("the small one is in the way")
        return allocate(*given, **named)

    monkeypatch.setattr(context_module, "new_arena", scarce)
    np.testing.assert_array_equal(network([large])[0], 2 * large)
    assert len(refused) == 1
