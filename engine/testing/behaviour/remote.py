"""Checks of remote contexts: tensors that stay in the device's memory."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from engine.core import Core
from engine.errors import ContextClosed, EngineError, InputError, PropertyError, UnsupportedError
from engine.ir import ElementType, f32, i32, string
from engine.plugin_api import ExecutableNetwork, RemoteContext, RemoteTensor, Transfers
from engine.testing.behaviour.base import DeviceChecks, in_threads, is_freed
from engine.testing.behaviour.cases import Array, Sample
from engine.testing.conformance.selection import LIMIT

_ROUNDS = 5


class RemoteChecks(DeviceChecks):
    """A device with REMOTE_CONTEXT_SUPPORT chains networks in its memory; one without says so."""

    area: ClassVar[str] = "remote"

    @pytest.fixture
    def context(self, core: Core) -> RemoteContext:
        """A context of the device; without one the check is skipped."""
        if not core.get_property(self.device, "REMOTE_CONTEXT_SUPPORT"):
            pytest.skip(f"{self.device} declares REMOTE_CONTEXT_SUPPORT = False")
        return core.create_context(self.device)

    def compile_in(self, core: Core, context: RemoteContext) -> ExecutableNetwork:
        """The basic model, compiled for a context."""
        return core.compile_model(self.basic.model(), context, dict(self.config))

    def tensors(self, context: RemoteContext, sample: Sample) -> dict[str, RemoteTensor]:
        """Remote tensors in `context`, by name, with copies of the sample's inputs."""
        made = {name: context.create_tensor(f32, value.shape) for name, value in sample.inputs.items()}
        for name, tensor in made.items():
            tensor.copy_from(sample.inputs[name])
        return made

    def test_context_or_reason(self, core: Core) -> None:
        """The metric says whether there are contexts; a device without them refuses to make one."""
        if core.get_property(self.device, "REMOTE_CONTEXT_SUPPORT"):
            assert core.create_context(self.device).device.startswith(self.plugin_name)
            return
        with pytest.raises(UnsupportedError, match=self.plugin_name):
            core.create_context(self.device)

    def test_tensor_round_trip(self, context: RemoteContext) -> None:
        """Elements of several types and shapes are returned unchanged; each copy is counted."""
        arrays: list[Array] = [
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.array(7, np.int64),
            np.array([True, False, True]),
            np.zeros((0, 4), np.int32),
        ]
        for array in arrays:
            before = context.transfers
            tensor = context.create_tensor(ElementType.from_numpy(array.dtype), array.shape)
            tensor.copy_from(array)
            self.assert_value(tensor.to_host(), array, str(tensor))
            assert (tensor.shape, tensor.dtype, tensor.nbytes) == (array.shape, array.dtype, array.nbytes)
            moved = Transfers(before.to_device + array.nbytes, before.to_host + array.nbytes)
            assert context.transfers == moved
            other = context.create_tensor(tensor.element_type, array.shape)
            other.copy_from(tensor)
            self.assert_value(other.to_host(), array, f"a copy of {tensor}")

    def test_chain_in_device_memory(self, core: Core, context: RemoteContext) -> None:
        """Two networks chained by a tensor give the same results as through the host, and nothing is copied there."""
        first, second = self.compile_in(core, context), self.compile_in(core, context)
        sample = self.basic.sample()
        given = self.tensors(context, sample)
        between, last = (context.create_tensor(f32, self.basic.shape) for _ in range(2))
        other = {name: context.create_tensor(f32, self.basic.shape) for name in ("first", "second")}
        expected = second({"a": first(sample.inputs)["total"], "b": sample.inputs["b"]})["total"]
        a, b = first.create_infer_request(), second.create_infer_request()
        a.set_tensor("total", between)
        a.set_tensor("product", other["first"])
        b.set_tensor("a", between)
        b.set_tensor("b", given["b"])
        b.set_tensor("total", last)
        b.set_tensor("product", other["second"])
        before = context.transfers
        for _ in range(2):
            a.infer(given)
            b.start_async()
            b.wait(LIMIT)
        assert context.transfers == before, "an inference copied tensors of the context by way of the host"
        self.assert_value(last.to_host(), expected, "the output of the second network")

    def test_output_stays_remote(self, core: Core, context: RemoteContext) -> None:
        """An output that a tensor is set for is that tensor in the results; others, and later ones, are arrays."""
        request = self.compile_in(core, context).create_infer_request()
        sample, later = self.basic.sample(), self.basic.sample(1)
        tensor = context.create_tensor(f32, self.basic.shape)
        request.set_output_tensor("total", tensor)
        result = request.infer(sample.inputs)
        assert result["total"] is tensor
        assert request.get_tensor("total") is tensor
        self.assert_value(tensor.to_host(), sample.outputs["total"], "output `total`")
        self.assert_value(result["product"], sample.outputs["product"], "output `product`")
        request.set_output_tensor("total", None)
        self.assert_outputs(request.infer(later.inputs), later.outputs)
        self.assert_value(tensor.to_host(), sample.outputs["total"], "output `total` of the inference before")

    def test_remote_and_host_inputs_in_turn(self, core: Core, context: RemoteContext) -> None:
        """An inference reads what is set for it, on the device or not."""
        network = self.compile_in(core, context)
        request = network.create_infer_request()
        for seed in range(4):
            sample = self.basic.sample(seed)
            given = self.tensors(context, sample)
            mixed = {"a": given["a"], "b": sample.inputs["b"]}
            self.assert_outputs(request.infer(given), sample.outputs)
            self.assert_outputs(request.infer(sample.inputs), sample.outputs)
            self.assert_outputs(network(mixed), sample.outputs)

    def test_output_in_the_memory_of_an_input(self, core: Core, context: RemoteContext) -> None:
        """A tensor may be an input and an output: all inputs are read before it is written."""
        request = self.compile_in(core, context).create_infer_request()
        sample = self.basic.sample()
        given = self.tensors(context, sample)
        request.set_output_tensor("total", given["b"])
        result = request.infer(given)
        assert result["total"] is given["b"]
        self.assert_value(given["b"].to_host(), sample.outputs["total"], "output `total`")
        self.assert_value(result["product"], sample.outputs["product"], "output `product`")

    def test_one_tensor_for_two_outputs(self, core: Core, context: RemoteContext) -> None:
        """Two outputs in one memory are refused before anything runs."""
        request = self.compile_in(core, context).create_infer_request()
        tensor = context.create_tensor(f32, self.basic.shape)
        request.set_output_tensor("total", tensor)
        request.set_output_tensor("product", tensor)
        with pytest.raises(InputError, match=r"`total` and `product`|`product` and `total`"):
            request.infer(self.basic.sample().inputs)
        request.clear_tensors()
        self.check_usable(request, self.basic.sample())

    def test_wrong_tensor_is_refused(self, core: Core, context: RemoteContext) -> None:
        """A tensor of another type, shape or context is refused, and the request stays usable."""
        request = self.compile_in(core, context).create_infer_request()
        sample = self.basic.sample()
        shape = self.basic.shape
        wrong = {
            "element type": context.create_tensor(i32, shape),
            "expected": context.create_tensor(f32, (*shape[:-1], shape[-1] + 1)),
            "rank": context.create_tensor(f32, (1, *shape)),
            "compile it with": core.create_context(self.device).create_tensor(f32, shape),
        }
        for reason, tensor in wrong.items():
            for name in ("a", "total"):
                with pytest.raises(InputError, match=reason):
                    request.set_tensor(name, tensor)
        with pytest.raises(InputError):
            request.infer({"a": wrong["rank"], "b": sample.inputs["b"]})
        self.check_usable(request, sample)

    def test_contexts_are_apart(self, core: Core, context: RemoteContext) -> None:
        """A network takes tensors of its own context only, and closing one context does not affect another."""
        other = core.create_context(self.device)
        sample = self.basic.sample()
        ours, theirs = self.tensors(context, sample), self.tensors(other, sample)
        networks = {context: self.compile_in(core, context), other: self.compile_in(core, other)}
        for tensors, home, away in ((ours, context, other), (theirs, other, context)):
            self.assert_outputs(networks[home](tensors), sample.outputs)
            with pytest.raises(InputError, match="context"):
                networks[away](tensors)
        with pytest.raises(InputError, match="without a context"):
            self.compile(core, self.basic.model())(ours)
        other.close()
        self.assert_outputs(networks[context](ours), sample.outputs)

    def test_closed_context(self, core: Core, context: RemoteContext) -> None:
        """After `close`, tensors and context are refused; networks of the context still take arrays."""
        network = self.compile_in(core, context)
        request, sample = network.create_infer_request(), self.basic.sample()
        given, out = self.tensors(context, sample), context.create_tensor(f32, self.basic.shape)
        request.set_tensor("total", out)
        request.infer(given)
        context.close()
        context.close()
        attempts: list[Callable[[], object]] = [
            request.infer,
            lambda: request.set_tensor("a", given["a"]),
            lambda: network(given),
            out.to_host,
            lambda: out.handle,
            lambda: out.copy_from(sample.inputs["a"]),
            lambda: context.create_tensor(f32, self.basic.shape),
            lambda: context.wrap(0, f32, self.basic.shape),
            lambda: core.compile_model(self.basic.model(), context),
        ]
        for attempt in attempts:
            with pytest.raises(ContextClosed, match="closed"):
                attempt()
        request.clear_tensors()
        self.check_usable(request, sample)

    def test_context_in_with(self, core: Core, context: RemoteContext) -> None:
        """A `with` statement closes its context, and its tensors then raise `ContextClosed`."""
        with context:
            tensor = context.create_tensor(f32, (2,))
        assert context.is_closed
        with pytest.raises(ContextClosed):
            tensor.to_host()

    def test_tensor_lives_while_it_is_used(self, core: Core, context: RemoteContext) -> None:
        """A request keeps the tensors that are set, and nothing keeps them after that."""
        request = self.compile_in(core, context).create_infer_request()
        sample = self.basic.sample()
        given = self.tensors(context, sample)
        out = context.create_tensor(f32, self.basic.shape)
        watched = [weakref.ref(tensor) for tensor in (*given.values(), out)]
        for name, tensor in (*given.items(), ("total", out)):
            request.set_tensor(name, tensor)
        del given, tensor, out
        result = request.infer()
        self.assert_value(result["total"].to_host(), sample.outputs["total"], "output `total`")
        del result
        request.clear_tensors()
        self.check_usable(request, sample)
        assert all(map(is_freed, watched)), "a tensor outlives its use"

    def test_context_lives_as_its_tensors(self, core: Core, context: RemoteContext) -> None:
        """A tensor keeps its context; networks do not keep tensors."""
        tensor = core.create_context(self.device).create_tensor(f32, (3,))
        tensor.copy_from(np.arange(3, dtype=np.float32))
        self.assert_value(tensor.to_host(), np.arange(3, dtype=np.float32), "the tensor")

    def test_invalid_tensors(self, core: Core, context: RemoteContext) -> None:
        """Types, shapes, contents, handles and properties that do not exist are refused."""
        tensor = context.create_tensor(f32, (2,))
        for element_type, shape in ((string, (2,)), ("f32", (2,)), (f32, (2, -1)), (f32, 2), (f32, (1.5,))):
            with pytest.raises(InputError):
                context.create_tensor(element_type, shape)  # type: ignore[arg-type]
        for source in (np.zeros(3, np.float32), np.zeros(2, np.int32), [0.0, 0.0], context.create_tensor(f32, (3,))):
            with pytest.raises(InputError):
                tensor.copy_from(source)
        with pytest.raises(EngineError):
            context.wrap(object(), f32, (2,))
        with pytest.raises(PropertyError, match="NO_SUCH_PROPERTY"):
            core.create_context(self.device, {"NO_SUCH_PROPERTY": 1})
        with pytest.raises(UnsupportedError, match="to_host"):
            np.asarray(tensor)

    def test_dlpack(self, context: RemoteContext) -> None:
        """Memory that the host can access is shared through DLPack; other memory is refused, and never copied."""
        tensor = context.create_tensor(f32, (2, 3))
        kind, _ = tensor.__dlpack_device__()
        if kind != 1:
            with pytest.raises(UnsupportedError, match="to_host"):
                np.from_dlpack(tensor)
            return
        view = np.from_dlpack(tensor)
        view[:] = np.arange(6, dtype=np.float32).reshape(2, 3)
        self.assert_value(tensor.to_host(), view, "the tensor")
        assert tensor.shares_memory(view)

    def test_handle_round_trip(self, context: RemoteContext) -> None:
        """A tensor's handle can be wrapped again, and names the same memory."""
        tensor = context.create_tensor(f32, (4,))
        try:
            same = context.wrap(tensor.handle, f32, (2, 2))
        except UnsupportedError as e:
            pytest.skip(f"{self.device} does not wrap handles: {e}")
        same.copy_from(np.arange(4, dtype=np.float32).reshape(2, 2))
        self.assert_value(tensor.to_host(), np.arange(4, dtype=np.float32), "the tensor")
        assert same.shares_memory(tensor)
        with pytest.raises(InputError):
            context.wrap(tensor.handle, f32, (1 << 20,))

    def test_concurrent_requests_with_tensors(self, core: Core, context: RemoteContext) -> None:
        """Threads with tensors of their own, chained, on one context and one pair of networks."""
        first, second = self.compile_in(core, context), self.compile_in(core, context)

        def chain(thread: int) -> None:
            a, b = first.create_infer_request(), second.create_infer_request()
            between, out = (context.create_tensor(f32, self.basic.shape) for _ in range(2))
            a.set_tensor("total", between)
            b.set_tensor("a", between)
            b.set_tensor("product", out)
            for shift in range(_ROUNDS):
                sample = self.basic.sample(thread + shift)
                given = self.tensors(context, sample)
                a.infer(given)
                b.start_async({"b": given["b"]})
                b.wait(LIMIT)
                total = sample.outputs["total"]
                expected = self.basic.answer(total, sample.inputs["b"])
                self.assert_value(out.to_host(), expected["product"], "output `product`")
                self.assert_value(b.results["total"], expected["total"], "output `total`")

        in_threads(chain)

    def test_blob_in_a_context(self, core: Core, context: RemoteContext) -> None:
        """An exported network is imported for a context as it is compiled for one."""
        self.require_export(core)
        stream = io.BytesIO()
        self.compile_in(core, context).export_model(stream)
        blob = stream.getvalue()
        sample = self.basic.sample()
        network = core.import_model(blob, context)
        assert network.context is context
        self.assert_outputs(network(self.tensors(context, sample)), sample.outputs)
        assert core.import_model(blob, self.device).context is None
