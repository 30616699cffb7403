"""Remote contexts and tensors, as the engine sees them: a device that does only what it must.

If this fails, a device's memory is used after it was freed, or a tensor passes through the host unnoticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, RemoteContext, RemoteTensor, ops
from engine.errors import (
    ContextClosed,
    DeviceError,
    EngineError,
    InputError,
    NotOnHostError,
    OutOfMemoryError,
    PluginContractError,
    PropertyError,
    UnsupportedError,
)
from engine.ir import Model, Parameter, bf16, f32
from engine.plugin_api import (
    API_VERSION,
    Config,
    ElementType,
    ExecutableNetwork,
    Plugin,
    QueryResult,
    Support,
    SyncInferRequest,
    Transfers,
)


class Bytes(RemoteTensor):
    """Memory that is an array, which the host sees only if `is_visible`."""

    is_visible = False

    def __init__(self, context: RemoteContext, element_type: ElementType, shape: tuple[int, ...]) -> None:
        super().__init__(context, element_type, shape)
        self.array = np.zeros(shape, self.dtype)
        self.is_released = False

    @property
    def handle(self) -> int:
        return id(self.array)

    def read(self) -> np.ndarray:
        return self.array.copy()

    def write(self, array: np.ndarray) -> None:
        self.array[...] = array

    def host_view(self) -> np.ndarray | None:
        return self.array if self.is_visible else None

    def release(self) -> None:
        self.is_released = True


class Visible(Bytes):
    is_visible = True


class Store(RemoteContext):
    tensor_class: type[Bytes] = Bytes
    closed = 0

    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        return self.tensor_class(self, element_type, shape)

    def close_impl(self) -> None:
        self.closed += 1


class Doubling(SyncInferRequest):
    """Knows tensors among its inputs, and nothing of those that are set for outputs."""

    def start_pipeline(self) -> None:
        (x,) = self.inputs
        self.store_output(0, 2 * (x.array if isinstance(x, Bytes) else x), copy=False)
        self.store_output(1, x)


class Network(ExecutableNetwork[Plugin]):
    def create_infer_request_impl(self) -> SyncInferRequest:
        return Doubling(self)


class Least(Plugin):
    """Overrides `create_context` only; compiling takes no notice of it."""

    name, version, api_version = "LEAST", "1.0.0", API_VERSION
    context_handles = {"STORE": "the application's store"}
    context_class: Any = Store
    asked: Any = None

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return Network(self, config, model)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        nodes = [n for n in model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")]
        return QueryResult({node.friendly_name: Support.native() for node in nodes})

    def create_context(self, device: str, config: Config, handles: Any) -> RemoteContext:
        type(self).asked = device, config["NUM_STREAMS"], dict(handles)
        made: RemoteContext = self.context_class(self, device, handles)
        return made


def model() -> Model:
    x = Parameter(f32, [3], "x")
    return Model([ops.Add(x, x), ops.Identity(x)], [x])


X = np.array([1, 2, 3], np.float32)


@pytest.fixture
def core() -> Core:
    made = Core()
    made.register_plugin("LEAST", Least)
    return made


@pytest.fixture
def context(core: Core) -> RemoteContext:
    return core.create_context("LEAST")


# -- requests -----------------------------------------------------------------------------------------------------


def test_a_device_that_ignores_output_tensors_is_right_and_the_copies_are_counted(
    core: Core, context: RemoteContext
) -> None:
    request = core.compile_model(model(), context).create_infer_request()
    first, second, source = (context.create_tensor(f32, [3]) for _ in range(3))
    source.copy_from(X)
    request.set_output_tensor(0, first)
    request.set_output_tensor(1, second)
    before = context.transfers
    for given in (X, source):
        result = request.infer([given])
        assert list(result.values()) == [first, second]
        np.testing.assert_array_equal(first.to_host(), 2 * X)
        np.testing.assert_array_equal(second.to_host(), X)
    # Per inference two results to the device; an input that is passed on is copied to the host for that; 4 reads.
    assert context.transfers == Transfers(before.to_device + 4 * 12, before.to_host + 12 + 4 * 12)


def test_an_input_tensor_that_is_passed_on_to_the_host_is_a_copy(core: Core, context: RemoteContext) -> None:
    source = context.create_tensor(f32, [3])
    source.copy_from(X)
    result = core.compile_model(model(), context)([source])
    source.copy_from(-X)
    np.testing.assert_array_equal(result[1], X)


def test_a_tensor_that_shares_memory_with_an_array_output(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for two arrays: the output is computed elsewhere first."""
    monkeypatch.setattr(Store, "tensor_class", Visible)
    context = core.create_context("LEAST")
    source = context.create_tensor(f32, [3])
    source.copy_from(X)
    request = core.compile_model(model(), context).create_infer_request()
    request.set_output_tensor(0, np.from_dlpack(source))
    result = request.infer([source])
    np.testing.assert_array_equal(result[0], 2 * X)
    np.testing.assert_array_equal(source.to_host(), 2 * X)
    request.set_output_tensor(1, source)
    with pytest.raises(InputError, match="share memory"):
        request.infer([X])


def test_results_of_a_shape_that_the_tensor_does_not_have(core: Core, context: RemoteContext) -> None:
    x = Parameter(f32, ["n"], "x")
    network = core.compile_model(Model([ops.Add(x, x), ops.Identity(x)], [x]), context)
    request = network.create_infer_request()
    request.set_output_tensor(0, context.create_tensor(f32, [2]))
    with pytest.raises(InputError, match=r"has shape \(3,\) for these inputs, but the tensor set for it has \(2,\)"):
        request.infer([X])
    request.set_output_tensor(0, None)
    np.testing.assert_array_equal(request.infer([X])[0], 2 * X)


def test_a_read_only_tensor_is_no_output(core: Core, context: RemoteContext) -> None:
    tensor = context.create_tensor(f32, [3])
    tensor.is_writable = False
    request = core.compile_model(model(), context).create_infer_request()
    with pytest.raises(InputError, match="read-only"):
        request.set_output_tensor(0, tensor)
    request.set_input_tensor(0, tensor)


def test_networks_of_other_devices_say_what_to_do(core: Core, context: RemoteContext) -> None:
    tensor = context.create_tensor(f32, [3])
    for device in ("CPU", "TEMPLATE", "LEAST"):
        with pytest.raises(InputError, match=r"in context \d+ of LEAST.*without a context.*compile_model.*to_host\(\)"):
            core.compile_model(model(), device)([tensor])


def test_a_network_from_the_cache_takes_tensors_too(core: Core, tmp_path: Path) -> None:
    context = core.create_context("TEMPLATE")
    tensor = context.create_tensor(f32, [3])
    tensor.copy_from(X)
    compiled = model()  # the names of nodes are part of the key
    for is_cached in (False, True):
        network = core.compile_model(compiled, context, {"CACHE_DIR": str(tmp_path / "cache")})
        assert network.get_property("LOADED_FROM_CACHE") is is_cached
        np.testing.assert_array_equal(network([tensor])[0], 2 * X)


# -- contexts -----------------------------------------------------------------------------------------------------


def test_what_a_plugin_gets(core: Core) -> None:
    store = object()
    context = core.create_context("LEAST", {"STORE": store, "NUM_STREAMS": 3})
    assert Least.asked == ("LEAST", 3, {"STORE": store})
    assert context.handles["STORE"] is store
    assert core.compile_model(model(), context).context is context
    assert core.compile_model(model(), "LEAST").context is None
    with pytest.raises(PropertyError, match=r"no property 'SHOP'.*STORE: the application's store"):
        core.create_context("LEAST", {"SHOP": store})
    with pytest.raises(PropertyError, match="NUM_STREAMS"):
        core.create_context("LEAST", {"NUM_STREAMS": -1})
    with pytest.raises(UnsupportedError, match=r"does not wrap memory of other libraries; use create_tensor"):
        context.wrap(store, f32, [3])


def test_devices_without_contexts_name_those_with(core: Core) -> None:
    assert core.get_property("LEAST", "REMOTE_CONTEXT_SUPPORT") is True
    assert core.get_property("CPU", "REMOTE_CONTEXT_SUPPORT") is False
    with pytest.raises(UnsupportedError, match=r"CPU has no remote contexts; set arrays") as refused:
        core.create_context("CPU")
    assert "LEAST" in str(refused.value)
    assert "TEMPLATE" in str(refused.value)


class ForgetsToCallSuper(Store):
    def __init__(self, plugin: object, device: str, handles: object) -> None:
        pass


class MakesArrays(Store):
    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("made", "pattern"),
    [
        (lambda *_: None, "create_context returned NoneType, expected RemoteContext"),
        (ForgetsToCallSuper, "must call super"),
        (lambda plugin, *given: Store(object(), *given), "must be made with this plugin"),
    ],
)
def test_contexts_that_violate_the_contract(
    core: Core, made: Callable[..., object], pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Least, "context_class", staticmethod(made))
    with pytest.raises(PluginContractError, match=pattern):
        core.create_context("LEAST")


def test_tensors_that_violate_the_contract(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Least, "context_class", MakesArrays)
    with pytest.raises(PluginContractError, match="expected an initialised RemoteTensor, got ndarray"):
        core.create_context("LEAST").create_tensor(f32, [3])


class Failing(Store):
    """Its driver fails in every call after `error` is set."""

    error: Exception | None = None

    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        if self.error is not None:
            raise self.error
        return FailingBytes(self, element_type, shape)

    def wrap_impl(self, handle: object, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        return self.create_tensor_impl(element_type, shape)


class FailingBytes(Bytes):
    context: Failing

    def _fail(self) -> None:
        if self.context.error is not None:
            raise self.context.error

    def read(self) -> np.ndarray:
        self._fail()
        return super().read()

    def write(self, array: np.ndarray) -> None:
        self._fail()
        super().write(array)

    def copy_on_device(self, source: RemoteTensor) -> bool:
        self._fail()
        return False

    def release(self) -> None:
        super().release()
        self._fail()


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (RuntimeError("driver 17"), DeviceError, "RuntimeError: driver 17"),
        (MemoryError(), OutOfMemoryError, "there is not enough memory"),
        (InputError("as it is"), InputError, "^as it is$"),
    ],
)
def test_what_a_driver_raises_is_an_error_of_the_engine(
    core: Core, error: Exception, expected: type[EngineError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Least, "context_class", Failing)
    context = core.create_context("LEAST")
    assert isinstance(context, Failing)
    tensors = [context.create_tensor(f32, [3]) for _ in range(3)]
    context.error = error
    for attempt in (
        lambda: context.create_tensor(f32, [3]),
        lambda: context.wrap(1, f32, [3]),
        tensors[0].to_host,
        lambda: tensors[0].copy_from(np.ones(3, np.float32)),
        lambda: tensors[0].copy_from(tensors[1]),
        context.close,
    ):
        with pytest.raises(expected, match=said):
            attempt()
    assert all(isinstance(tensor, Bytes) and tensor.is_released for tensor in tensors)
    assert context.is_closed
    assert context.closed == 1


def test_sizes_that_no_memory_has(context: RemoteContext) -> None:
    with pytest.raises(OutOfMemoryError, match=r"context \d+ of LEAST: a tensor f32 \[4611686018427387904, 4\] has"):
        context.create_tensor(f32, [1 << 62, 4])


class Foreign:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_a_tensor_is_set_from_one_of_another_library(context: RemoteContext) -> None:
    tensor = context.create_tensor(f32, [3])
    tensor.copy_from(Foreign(np.arange(3, dtype=np.float32)))
    np.testing.assert_array_equal(tensor.to_host(), [0, 1, 2])
    with pytest.raises(InputError, match="cannot be set from float64"):
        tensor.copy_from(Foreign(np.ones(3)))
    with pytest.raises(InputError, match=r"the Foreign cannot be read through DLPack \(.*\); copy it to host memory"):
        tensor.copy_from(Foreign(np.array(["a"], object)))
    with pytest.raises(InputError, match="expected an array, a DLPack tensor or a remote tensor, got list"):
        tensor.copy_from([1, 2, 3])


def test_closing_releases_tensors_once_and_refuses_new_ones(context: RemoteContext) -> None:
    kept = context.create_tensor(f32, [3])
    context.create_tensor(f32, [3])
    for _ in range(2):
        context.close()
    assert isinstance(kept, Bytes)
    assert isinstance(context, Store)
    assert kept.is_released
    assert context.closed == 1
    with pytest.raises(ContextClosed, match=r"context \d+ of LEAST is closed; create another with core.create_context"):
        context.create_tensor(f32, [3])


def test_a_tensor_that_is_made_while_the_context_is_closed_is_released(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Bytes] = []

    class Slow(Store):
        def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
            made.append(Bytes(self, element_type, shape))
            closing = threading.Thread(target=self.close)
            closing.start()
            closing.join()
            return made[-1]

    monkeypatch.setattr(Least, "context_class", Slow)
    with pytest.raises(ContextClosed):
        core.create_context("LEAST").create_tensor(f32, [3])
    assert made[0].is_released


def test_counts_of_many_threads_add_up(context: RemoteContext) -> None:
    def count() -> None:
        for _ in range(1000):
            context.count_transfer(to_device=1, to_host=2)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert context.transfers == Transfers(8000, 16000)


# -- tensors ------------------------------------------------------------------------------------------------------


def test_copies_between_contexts_go_by_way_of_the_host(core: Core, context: RemoteContext) -> None:
    other = core.create_context("TEMPLATE")
    ours, theirs = context.create_tensor(f32, [3]), other.create_tensor(f32, [3])
    ours.copy_from(X)
    theirs.copy_from(ours)
    np.testing.assert_array_equal(theirs.to_host(), X)
    assert (context.transfers, other.transfers) == (Transfers(12, 12), Transfers(12, 12))
    other.close()
    with pytest.raises(ContextClosed):
        ours.copy_from(theirs)


def test_a_strided_array_is_copied_as_it_is_read(context: RemoteContext) -> None:
    tensor = context.create_tensor(f32, [3, 2])
    array = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2].T
    tensor.copy_from(array)
    np.testing.assert_array_equal(tensor.to_host(), array)


def test_dlpack_where_the_host_sees_the_memory(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "tensor_class", Visible)
    context = core.create_context("LEAST")
    tensor = context.create_tensor(f32, [2, 2])
    view = np.from_dlpack(tensor)
    view[0, 1] = 7
    assert tensor.to_host()[0, 1] == 7
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(NotOnHostError, match=r"DLPack cannot express it.*to_host"):
        np.from_dlpack(context.create_tensor(bf16, [2]))
    context.close()
    with pytest.raises(ContextClosed):
        np.from_dlpack(tensor)


def test_memory_of_the_device_is_no_array(context: RemoteContext) -> None:
    tensor = context.create_tensor(f32, [2])
    assert tensor.__dlpack_device__() == (12, 0)
    for attempt in (np.from_dlpack, np.asarray, lambda t: np.ones(2, np.float32) + t):
        with pytest.raises(EngineError, match="to_host"):
            attempt(tensor)
