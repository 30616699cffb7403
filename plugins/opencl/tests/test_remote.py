"""Tensors that stay on the device, and the handles of an application, on devices of every kind of memory.

If this fails, an application that shares memory with the engine reads old data, or pays for copies through the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.devices.device import OpenclDevice, find_devices
from engine_opencl.devices.device_check import MEMORY_KINDS
from engine_opencl.execution.kernels import new_kernel
from engine_opencl.memory import MappedArena, SharedArena, StagedArena
from engine_opencl.remote.context import OpenclContext

from engine import Core, RemoteContext, ops
from engine.errors import (
    ContextClosed,
    DeviceError,
    EngineError,
    InputError,
    NotOnHostError,
    OutOfMemoryError,
    PropertyError,
)
from engine.ir import Constant, Model, Parameter, Result, f16, f32, i64
from engine.plugin_api import Transfers

pytestmark = pytest.mark.opencl
LENGTH = 1 << 14


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


class Copies:
    """Counts what inferences copy: inputs and outputs of arenas, and commands of the driver that move data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        for arena in (SharedArena, MappedArena, StagedArena):
            monkeypatch.setattr(arena, "upload", self._counting(arena.upload, lambda given: bool(given[1])))
            monkeypatch.setattr(arena, "take", self._counting(arena.take))
        for call in ("enqueue_copy", "enqueue_map_buffer"):
            monkeypatch.setattr(cl, call, self._counting(getattr(cl, call)))

    def _counting(self, call: Any, counts: Any = lambda given: True) -> Any:
        def counting(*given: Any, **named: Any) -> Any:
            if counts(given):
                self.found.append(call.__qualname__)
            return call(*given, **named)

        return counting


def squaring(length: int | str = LENGTH) -> Model:
    x = Parameter(f32, [length], "x")
    return Model([ops.Add(ops.Mul(x, x), x)], [x])


def squared(x: np.ndarray) -> np.ndarray:
    return x * x + x


def ramp(length: int = LENGTH) -> np.ndarray:
    return np.linspace(-1, 1, length, dtype=np.float32)


def filled(context: RemoteContext, array: np.ndarray) -> Any:
    tensor = context.create_tensor(f32, array.shape)
    tensor.copy_from(array)
    return tensor


def chain(core: Core, context: RemoteContext, source: Any) -> Any:
    """Two networks; the second one reads the results of the first."""
    between, last = (context.create_tensor(f32, source.shape) for _ in range(2))
    requests = [core.compile_model(squaring(source.shape[0]), context).create_infer_request() for _ in range(2)]
    for request, given, out in zip(requests, (source, between), (between, last), strict=True):
        request.set_input_tensor(0, given)
        request.set_output_tensor(0, out)
        request.infer()
    return requests, last


# -- no copies --------------------------------------------------------------------------------------------------


def test_a_chain_copies_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By counting all copies that the driver and the arenas make, and by the context's own count."""
    core = Core()
    context = core.create_context("OPENCL")
    requests, last = chain(core, context, filled(context, ramp()))
    before, copies = context.transfers, Copies(monkeypatch)
    for request in requests:
        request.infer()
        request.start_async()
        request.wait(60)
    assert copies.found == []
    assert context.transfers == before
    # An array is copied once each way, and counted: the counters work.
    result = requests[0].infer([ramp(LENGTH + 1)[1:]])  # off the alignment at which it would be read in place
    assert result[0] is not last
    assert copies.found
    assert context.transfers.to_device - before.to_device == 4 * LENGTH
    monkeypatch.undo()
    np.testing.assert_allclose(last.to_host(), squared(squared(ramp())), rtol=1e-5)


def test_transfers_of_arrays_are_counted(kind: str) -> None:
    core = Core()
    context = core.create_context("OPENCL")
    network = core.compile_model(squaring(16), context)
    network([ramp(16)])
    assert context.transfers == Transfers(64, 64)
    filled(context, ramp(16)).to_host()
    assert context.transfers == Transfers(128, 128)


# -- outputs of every sort ----------------------------------------------------------------------------------------


def odd_model() -> Model:
    """Outputs: a view of an input, an input, a constant, a value that others read, the same value again, its view."""
    x, y = Parameter(f32, [6, 5], "x"), Parameter(f32, [6, 5], "y")
    total = ops.Add(x, y)
    table = Constant(np.arange(4, dtype=np.float32))
    view = ops.Reshape(x, Constant(np.array([-1]), i64))
    product = ops.MatMul(total, Constant(np.eye(5, dtype=np.float32) * 2))
    flat = ops.Reshape(total, Constant(np.array([5, 6]), i64))
    values = view, y, table, total, total, product, flat
    return Model([Result(value, f"y{index}") for index, value in enumerate(values)], [x, y])


def odd_results(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    total = x + y
    return [x.reshape(-1), y, np.arange(4, dtype=np.float32), total, total, total * 2, total.reshape(5, 6)]


@pytest.mark.parametrize("mask", [0b1111111, 0b1010101, 0b0101010, 0b0001000, 0b0010001, 0b1000000, 0b0000001])
def test_outputs_that_are_no_buffer_of_their_own(kind: str, mask: int) -> None:
    """Each of some outputs goes to a tensor, the others to arrays; the next inference may differ."""
    core = Core()
    context = core.create_context("OPENCL")
    model = odd_model()
    request = core.compile_model(model, context).create_infer_request()
    random = np.random.default_rng(mask)
    for is_remote in (True, False, True):
        x, y = (random.random((6, 5), np.float32) for _ in range(2))
        expected = odd_results(x, y)
        tensors = {i: context.create_tensor(f32, e.shape) for i, e in enumerate(expected) if mask >> i & 1}
        for index in range(len(expected)):
            request.set_output_tensor(index, tensors.get(index) if is_remote else None)
        given = [filled(context, x), y] if mask % 2 else [x, filled(context, y)]
        found = list(request.infer(given).values())
        for index, (value, wanted) in enumerate(zip(found, expected, strict=True)):
            if is_remote and index in tensors:
                assert value is tensors[index]
                value = value.to_host()
            np.testing.assert_allclose(value, wanted, rtol=1e-6, err_msg=f"output {index}")


def test_nothing_is_written_beside_a_tensor(device: OpenclDevice) -> None:
    """Kernels of several sorts write into the middle of a buffer whose other bytes stay as they are."""
    core = Core()
    context = core.create_context("OPENCL")
    x = Parameter(f32, [1, 3, 7, 7], "x")
    weights = Constant(np.random.default_rng(0).random((5, 3, 3, 3), np.float32))
    conv = ops.Conv(x, weights, pads=[1, 1, 1, 1])
    rows = ops.Reshape(x, Constant(np.array([21, 7]), i64))
    model = Model([ops.Relu(x), conv, ops.Softmax(rows), ops.ReduceSum(rows, Constant(np.array([1]), i64)),
                   ops.MatMul(rows, Constant(np.ones((7, 3), np.float32)))], [x])  # fmt: skip
    given = np.random.default_rng(1).random((1, 3, 7, 7), np.float32)
    network = core.compile_model(model, context)
    expected = network([given])
    request = network.create_infer_request()
    queue = cl.CommandQueue(context.handles["OCL_CONTEXT"])
    guard = device.facts.alignment
    memory = []
    for index, value in enumerate(expected.values()):
        size = guard + value.nbytes + guard
        buffer = cl.Buffer(context.handles["OCL_CONTEXT"], cl.mem_flags.READ_WRITE, size)
        cl.enqueue_fill_buffer(queue, buffer, np.uint8(0xA5), 0, size).wait()
        part = buffer.get_sub_region(guard, value.nbytes)
        request.set_output_tensor(index, context.wrap(part, f32, value.shape))
        memory.append(buffer)
    request.infer([given])
    for buffer, value in zip(memory, expected.values(), strict=True):
        found = np.empty(buffer.size, np.uint8)
        cl.enqueue_copy(queue, found, buffer)
        np.testing.assert_array_equal(found[guard : guard + value.nbytes].view(np.float32), value.reshape(-1))
        assert set(found[:guard]) | set(found[guard + value.nbytes :]) == {0xA5}


def test_an_output_in_the_memory_of_an_input(kind: str) -> None:
    """It is written after the input has been read, even if only parts of one buffer overlap."""
    core = Core()
    context = core.create_context("OPENCL")
    x = Parameter(f32, [512], "x")
    first = ops.Add(x, x)
    request = core.compile_model(Model([first, ops.Sub(ops.MatMul(x, x), x)], [x]), context).create_infer_request()
    buffer = cl.Buffer(context.handles["OCL_CONTEXT"], cl.mem_flags.READ_WRITE, 4096)
    data = np.random.default_rng(0).random(512, np.float32)
    for origin in (0, 1024):
        given = context.wrap(buffer.get_sub_region(0, 2048), f32, (512,))
        out = context.wrap(buffer.get_sub_region(origin, 2048), f32, (512,))
        given.copy_from(data)
        assert given.shares_memory(out)
        request.set_output_tensor(0, out)
        result = request.infer([given])
        np.testing.assert_array_equal(out.to_host(), data * 2)
        np.testing.assert_allclose(result[1], data @ data - data, rtol=1e-5)


def test_lengths_that_vary_and_empty_tensors(kind: str) -> None:
    core = Core()
    context = core.create_context("OPENCL")
    request = core.compile_model(squaring("n"), context).create_infer_request()
    for length in (5, 0, 1000, 5):
        source, out = filled(context, ramp(length)), context.create_tensor(f32, (length,))
        request.set_output_tensor(0, out)
        request.infer([source])
        np.testing.assert_allclose(out.to_host(), squared(ramp(length)), rtol=1e-5)
    with pytest.raises(InputError, match=r"has shape \(7,\) for these inputs, but the tensor set for it has \(5,\)"):
        request.infer([filled(context, ramp(7))])
    request.set_output_tensor(0, None)
    np.testing.assert_allclose(request.infer([ramp(7)])[0], squared(ramp(7)), rtol=1e-5)


def test_an_input_on_which_plans_depend_may_be_a_tensor(kind: str) -> None:
    core = Core()
    context = core.create_context("OPENCL")
    x, n = Parameter(f32, [6], "x"), Parameter(i64, [2], "n")
    network = core.compile_model(Model([ops.Reshape(ops.Relu(x), n)], [x, n]), context)
    lengths = context.create_tensor(i64, (2,))
    for shape in ((2, 3), (3, 2)):
        lengths.copy_from(np.array(shape))
        np.testing.assert_array_equal(network([ramp(6), lengths])[0], np.maximum(ramp(6), 0).reshape(shape))


# -- an application's own objects ---------------------------------------------------------------------------------


DOUBLE = "kernel void twice(global float *x) { int i = get_global_id(0); x[i] = x[i] * 2.0f; }"


@pytest.fixture(params=["objects", "numbers", "queue alone"])
def application(request: pytest.FixtureRequest, device: OpenclDevice) -> tuple[Any, Any, dict[str, object]]:
    """A context and a queue of an application, and how it passes them."""
    context = cl.Context([device.handle])
    queue = cl.CommandQueue(context)
    forms: dict[str, dict[str, object]] = {
        "objects": {"OCL_CONTEXT": context, "OCL_QUEUE": queue},
        "numbers": {"OCL_CONTEXT": context.int_ptr, "OCL_QUEUE": queue.int_ptr},
        "queue alone": {"OCL_QUEUE": queue},
    }
    return context, queue, forms[request.param]


@pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")
def test_kernels_of_the_application_and_networks_in_turn(kind: str, application: Any) -> None:
    """Commands in the application's queue come before the inference that it starts then, without waiting for them."""
    native, queue, handles = application
    core = Core()
    context = core.create_context("OPENCL", handles)
    assert context.handles["OCL_CONTEXT"] == native
    assert context.device == "OPENCL.0"
    twice = new_kernel(cl.Program(native, DOUBLE).build(cache_dir=False), "twice")
    source, result = (cl.Buffer(native, cl.mem_flags.READ_WRITE, 4 * LENGTH) for _ in range(2))
    request = core.compile_model(squaring(), context).create_infer_request()
    request.set_input_tensor(0, context.wrap(source, f32, [LENGTH]))
    request.set_output_tensor(0, context.wrap(result.int_ptr, f32, [LENGTH]))
    expected = ramp()
    cl.enqueue_copy(queue, source, expected)
    found = np.empty_like(expected)
    for _ in range(3):
        for _ in range(20):
            twice(queue, (LENGTH,), None, source)
        request.infer()
        expected = expected * np.float32(2**20)
        twice(queue, (LENGTH,), None, result)
        cl.enqueue_copy(queue, found, result)
        np.testing.assert_allclose(found, 2 * squared(expected), rtol=1e-5)
        cl.enqueue_copy(queue, source, ramp())
        expected = ramp()


def test_networks_of_the_engines_context_and_of_the_applications_are_apart(device: OpenclDevice) -> None:
    core, native = Core(), cl.Context([device.handle])
    own, theirs = core.create_context("OPENCL"), core.create_context("OPENCL", {"OCL_CONTEXT": native})
    buffer = cl.Buffer(native, cl.mem_flags.READ_WRITE, 64)
    with pytest.raises(InputError, match="of another OpenCL context; pass that one as OCL_CONTEXT"):
        own.wrap(buffer, f32, [16])
    tensor = theirs.wrap(buffer, f32, [16])
    tensor.copy_from(ramp(16))
    network = core.compile_model(squaring(16), theirs)
    np.testing.assert_allclose(network([tensor])[0], squared(ramp(16)), rtol=1e-5)
    np.testing.assert_allclose(core.compile_model(squaring(16), own)([ramp(16)])[0], squared(ramp(16)), rtol=1e-5)
    # Between the contexts, by way of the host, and only when asked.
    copy = own.create_tensor(f32, [16])
    copy.copy_from(tensor)
    np.testing.assert_array_equal(copy.to_host(), ramp(16))


def test_shared_virtual_memory_of_the_application(device: OpenclDevice) -> None:
    if not device.handle.svm_capabilities:
        pytest.skip(f"{device.facts.name} has no shared virtual memory")
    core = Core()
    context = core.create_context("OPENCL")
    memory = cl.SVMAllocation(context.handles["OCL_CONTEXT"], 256, 0, cl.svm_mem_flags.READ_WRITE)
    tensor = context.wrap(memory, f32, [64])
    tensor.copy_from(ramp(64))
    address = memory.svm_ptr
    del memory
    gc.collect()
    network = core.compile_model(squaring(64), context)
    np.testing.assert_allclose(network([tensor])[0], squared(ramp(64)), rtol=1e-5)
    np.testing.assert_array_equal(tensor.to_host(), ramp(64))
    host = np.frombuffer((ctypes.c_float * 64).from_address(address), np.float32)
    assert tensor.shares_memory(host[63:])
    assert not tensor.shares_memory(ramp(64))
    if device.handle.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER:
        assert ctypes.c_float.from_address(address).value == -1


def test_memory_of_the_host_without_a_copy(device: OpenclDevice) -> None:
    """DLPack in and out, on devices that share all memory with the host."""
    if not device.handle.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM:
        pytest.skip(f"{device.facts.name} does not share the host's memory")
    core = Core()
    context = core.create_context("OPENCL")
    x, y = (np.from_dlpack(context.create_tensor(f32, [64])) for _ in range(2))
    request = core.compile_model(squaring(64), context).create_infer_request()
    of_another_library = SimpleNamespace(__dlpack__=x.__dlpack__, __dlpack_device__=x.__dlpack_device__)
    request.set_input_tensor(0, context.wrap(of_another_library, f32, [64]))
    request.set_output_tensor(0, context.wrap(y, f32, [64]))
    for number in (1, 2):
        x[:] = number
        assert request.infer()[0] is request.get_output_tensor(0)
        np.testing.assert_array_equal(y, np.full(64, number * number + number))
    assert context.transfers == Transfers()
    x.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        request.set_output_tensor(0, context.wrap(x, f32, [64]))
    for wrong in (np.zeros(65, np.float32)[1:], np.zeros((8, 16), np.float32)[:, :8], np.zeros(0, np.float32)):
        with pytest.raises(InputError, match="create_tensor"):
            context.wrap(wrong, f32, wrong.shape)


def test_memory_that_the_host_cannot_access_is_no_dlpack_tensor(device: OpenclDevice, monkeypatch: Any) -> None:
    monkeypatch.setattr(device, "memory_kind", "staged")
    tensor = Core().create_context("OPENCL").create_tensor(f32, [4])
    assert tensor.__dlpack_device__() == (4, 0)
    with pytest.raises(NotOnHostError, match=r"`handle`.*to_host"):
        np.from_dlpack(tensor)
    assert issubclass(NotOnHostError, BufferError)  # what other libraries expect


# -- refusals -----------------------------------------------------------------------------------------------------


def test_handles_that_do_not_fit(device: OpenclDevice) -> None:
    core, native = Core(), cl.Context([device.handle])
    apart = cl.Context([device.handle])
    other = cl.CommandQueue(apart)
    wrong: list[tuple[dict[str, object], type[EngineError], str]] = [
        ({"OCL_CONTEXT": "gpu"}, InputError, "must be the application's pyopencl.Context"),
        ({"OCL_QUEUE": native}, InputError, "must be the application's pyopencl.CommandQueue"),
        ({"OCL_CONTEXT": True}, InputError, "got bool"),
        ({"OCL_CONTEXT": native, "OCL_QUEUE": other}, InputError, "of another context than OCL_CONTEXT"),
        ({"OCL_CONTEXTS": native}, PropertyError, "no property 'OCL_CONTEXTS'.*OCL_CONTEXT: the application's"),
    ]
    for handles, error, pattern in wrong:
        with pytest.raises(error, match=pattern):
            core.create_context("OPENCL", handles)
    context = core.create_context("OPENCL", {"OCL_CONTEXT": native})
    flags = cl.mem_flags
    refused: list[tuple[object, str]] = [
        (cl.Buffer(native, flags.READ_WRITE, 63), "64 bytes in memory of 63 bytes"),
        (cl.Buffer(native, flags.WRITE_ONLY, 64), "write-only"),
        ("buffer", "expected a pyopencl.Buffer"),
        (0, "expected a pyopencl.Buffer"),
    ]
    for handle, pattern in refused:
        with pytest.raises(InputError, match=pattern):
            context.wrap(handle, f32, [16])
    fixed = context.wrap(cl.Buffer(native, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=ramp(16)), f32, [16])
    request = core.compile_model(squaring(16), context).create_infer_request()
    np.testing.assert_allclose(request.infer([fixed])[0], squared(ramp(16)), rtol=1e-5)
    for attempt in (lambda: request.set_output_tensor(0, fixed), lambda: fixed.copy_from(ramp(16))):
        with pytest.raises(InputError, match="read-only"):
            attempt()


def test_a_buffer_that_the_application_releases_lives_on_in_its_tensor(device: OpenclDevice) -> None:
    """The driver would end the process."""
    core, native = Core(), cl.Context([device.handle])
    context = core.create_context("OPENCL", {"OCL_CONTEXT": native})
    request = core.compile_model(squaring(16), context).create_infer_request()
    buffer = cl.Buffer(native, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=ramp(16))
    part = buffer.get_sub_region(0, 64)
    tensors = [context.wrap(buffer, f32, [16]), context.wrap(part, f32, [16])]
    for each in (part, buffer):
        each.release()
    for tensor in tensors:
        np.testing.assert_array_equal(tensor.to_host(), ramp(16))
        np.testing.assert_allclose(request.infer([tensor])[0], squared(ramp(16)), rtol=1e-5)


def test_a_configuration_for_another_device_is_refused(device: OpenclDevice) -> None:
    core = Core()
    with pytest.raises(EngineError, match="no device"):
        core.create_context("OPENCL.7")
    with pytest.raises(EngineError, match="DEVICE_NAME 'no such device'"):
        core.create_context("OPENCL", {"DEVICE_NAME": "no such device"})
    context = core.create_context("OPENCL", {"DEVICE_NAME": device.facts.name})
    assert context.device == "OPENCL.0"
    assert core.compile_model(squaring(16), context, {"DEVICE_ID": "0"}).context is context
    with pytest.raises(PropertyError, match="DEVICE_ID"):
        core.compile_model(squaring(16), context, {"DEVICE_ID": "1"})


def test_a_context_of_another_core_is_refused() -> None:
    context = Core().create_context("OPENCL")
    with pytest.raises(EngineError, match="another Core"):
        Core().compile_model(squaring(16), context)


def test_a_tensor_that_is_too_large_is_refused_before_it_is_allocated(device: OpenclDevice) -> None:
    with pytest.raises(OutOfMemoryError, match="a remote tensor"):
        Core().create_context("OPENCL").create_tensor(f32, [device.facts.largest_buffer])


# -- lifetime and failures ----------------------------------------------------------------------------------------


def test_a_context_that_is_closed_while_an_inference_runs(kind: str) -> None:
    """It ends as if it were open, or says that the context is closed; the network can be used afterwards."""
    core = Core()
    context = core.create_context("OPENCL")
    network = core.compile_model(squaring(), context)
    requests, source = [network.create_infer_request() for _ in range(8)], filled(context, ramp())
    for request in requests:
        request.set_output_tensor(0, context.create_tensor(f32, [LENGTH]))
        request.start_async([source])
    context.close()
    for request in requests:
        with contextlib.suppress(ContextClosed):
            request.wait(60)
        request.clear_tensors()
    np.testing.assert_allclose(network([ramp()])[0], squared(ramp()), rtol=1e-5)


@pytest.mark.parametrize("count", range(4))
def test_a_failure_of_the_driver_at_any_step(kind: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later inferences are right, with tensors and without."""
    core = Core()
    context = core.create_context("OPENCL")
    model = odd_model()
    request = core.compile_model(model, context).create_infer_request()
    x, y = (np.random.default_rng(seed).random((6, 5), np.float32) for seed in range(2))
    expected = odd_results(x, y)
    given = [filled(context, x), filled(context, y)]
    tensors = [context.create_tensor(f32, value.shape) for value in expected]
    for index, tensor in enumerate(tensors):
        request.set_output_tensor(index, tensor)
    calls = [0]
    for name in ("enqueue_copy", "enqueue_nd_range_kernel"):
        call = getattr(cl, name)

        def failing(*arguments: Any, _call: Any = call, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] > count:
                raise cl.RuntimeError(
                    cl._cl._ErrorRecord(msg="failed", code=cl.status_code.OUT_OF_RESOURCES, routine="test")
                )
            return _call(*arguments, **named)

        monkeypatch.setattr(cl, name, failing)
    with pytest.raises(DeviceError):
        request.infer(given)
    monkeypatch.undo()
    for _ in range(2):
        request.infer(given)
        for tensor, value in zip(tensors, expected, strict=True):
            np.testing.assert_allclose(tensor.to_host(), value, rtol=1e-6)
    for index in range(len(expected)):
        request.set_output_tensor(index, None)
    for found, value in zip(request.infer([y, x]).values(), odd_results(y, x), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-6)


def test_tensors_are_let_go(kind: str) -> None:
    core = Core()
    context = core.create_context("OPENCL")
    assert isinstance(context, OpenclContext)
    network = core.compile_model(squaring(), context)
    request = network.create_infer_request()
    request.set_output_tensor(0, context.create_tensor(f32, [LENGTH]))
    request.infer([filled(context, ramp())])
    request.clear_tensors()
    del request
    gc.collect()
    assert len(context._tensors) == 0
    assert all(not waiting._remote for idle in network.pool._idle.values() for waiting in idle)


def test_with_profiling_and_half_precision(kind: str) -> None:
    """Profiles and uploads by queue with tensors; values between are f16, tensors are what the model says."""
    core = Core()
    context = core.create_context("OPENCL")
    config = {"PERF_COUNT": True, "INFERENCE_PRECISION_HINT": "f16"}
    model = odd_model()
    request = core.compile_model(model, context, config).create_infer_request()
    x, y = (np.random.default_rng(seed).random((6, 5), np.float32) for seed in range(2))
    tensors = [context.create_tensor(f32, value.shape) for value in odd_results(x, y)]
    for index, tensor in enumerate(tensors):
        request.set_output_tensor(index, tensor)
    for _ in range(2):
        request.infer([filled(context, x), y])
        for tensor, value in zip(tensors, odd_results(x, y), strict=True):
            np.testing.assert_allclose(tensor.to_host(), value, rtol=2e-3)
        assert request.profiling_info.nodes
    with pytest.raises(InputError, match="element type is float16"):
        request.set_input_tensor(0, context.create_tensor(f16, [6, 5]))
