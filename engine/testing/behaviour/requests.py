"""Checks of a request's tensors: how they are set, where they are stored, and the effects of invalid ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import helper

from engine.core import Core
from engine.errors import EngineError, InferError, InputError
from engine.plugin_api import ExecutableNetwork
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import Array, Case, make_model, tensor, values


def _wrong_values(shape: tuple[int, ...]) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Values for input `a` of the basic model, and words that the message must contain."""
    right = f"[{','.join(map(str, shape))}]"
    longer, turned = (*shape, 1), shape[::-1]
    return {
        "element type": (np.zeros(shape, np.float64), ("a", "float64", "float32")),
        "rank": (np.zeros(longer, np.float32), ("a", str(longer), right)),
        "shape": (np.zeros(turned, np.float32), ("a", str(turned), right)),
        "no number": (np.full(shape, "1").tolist(), ("a", "str")),
        "no array": ({1.0}, ("a", "set", "np.asarray")),
        "nothing": (None, ("a", "NoneType")),
    }


class RequestChecks(DeviceChecks):
    """A request accepts the declared tensors, uses them in place, and stays usable after invalid ones."""

    area: ClassVar[str] = "requests"

    def test_inputs_by_name_index_and_order(self, network: ExecutableNetwork) -> None:
        """A mapping, a list, and tensors set one by one are the same to the device."""
        sample = self.basic.sample()
        a, b = sample.inputs.values()
        request = network.create_infer_request()
        for inputs in ({"b": b, "a": a}, {0: a, 1: b}, [a, b], (a, b)):
            self.assert_outputs(request.infer(inputs), sample.outputs)
            self.assert_outputs(network(inputs), sample.outputs)
        other = network.create_infer_request()
        other.set_tensor("a", a)
        other.set_input_tensor(1, b)
        self.assert_outputs(other.infer(), sample.outputs)

    def test_inputs_that_are_left_out_stay_bound(self, network: ExecutableNetwork) -> None:
        """A request keeps its inputs; calling a network does not."""
        first, second = self.basic.sample(1), self.basic.sample(2)
        request = network.create_infer_request()
        request.infer(first.inputs)
        result = request.infer({"a": second.inputs["a"]})
        self.assert_outputs(result, self.basic.answer(second.inputs["a"], first.inputs["b"]))
        network(first.inputs)
        with pytest.raises(InputError, match=r"`b`.* is missing"):
            network({"a": second.inputs["a"]})

    def test_input_tensors_are_used_in_place(self, network: ExecutableNetwork) -> None:
        """`get_tensor` returns the array that was set; the next inference reads changes to it."""
        request = network.create_infer_request()
        a, b = (value.copy() for value in self.basic.sample().inputs.values())
        request.set_tensor("a", a)
        request.set_tensor("b", b)
        assert request.get_tensor("a") is a
        for _ in range(3):
            self.assert_outputs(request.infer(), self.basic.answer(a, b))
            a += 1

    def test_strided_and_unaligned_inputs(self, network: ExecutableNetwork) -> None:
        """Any layout in memory gives the same results."""
        sample = self.basic.sample()
        a, b = sample.inputs.values()
        unaligned: Array = np.empty(a.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(a.shape)
        unaligned[...] = a
        spread: Array = np.repeat(np.repeat(b, 2, axis=0), 3, axis=1)[::2, ::3]
        for given in (unaligned, np.asfortranarray(a), a[::-1].copy()[::-1]):
            self.assert_outputs(network({"a": given, "b": spread}), sample.outputs)

    def test_strided_inputs_are_read_by_each_inference(self, network: ExecutableNetwork) -> None:
        """A view of a larger array is read again by each inference, whether it is set once or passed each time."""
        sample = self.basic.sample()
        frames: Array = np.stack([sample.inputs["a"]] * 3, axis=-1)
        view, b = frames[..., 1], sample.inputs["b"]
        request = network.create_infer_request()
        request.set_tensor("a", view)
        request.set_tensor("b", b)
        assert request.get_tensor("a") is view
        for _ in range(2):
            self.assert_outputs(request.infer(), self.basic.answer(view, b))
            frames += 1
            request.start_async()
            request.wait(self.limit)
            self.assert_outputs(request.results, self.basic.answer(view, b))
            frames += 1
            self.assert_outputs(request.infer({"b": b}), self.basic.answer(view, b))
            frames += 1
            self.assert_outputs(request.infer({"a": view}), self.basic.answer(view, b))
            frames += 1
        request.set_tensor("a", sample.inputs["a"])
        frames += 1
        self.assert_outputs(request.infer(), sample.outputs)

    def test_dlpack_tensors_are_inputs(self, network: ExecutableNetwork) -> None:
        """Tensors of other libraries are read in place if they are in host memory."""
        sample = self.basic.sample()
        request = network.create_infer_request()
        a = sample.inputs["a"].copy()
        request.set_tensor("a", _Foreign(a))
        assert np.shares_memory(request.get_tensor("a"), a)
        self.assert_outputs(request.infer({"b": _Foreign(sample.inputs["b"])}), sample.outputs)

    def test_output_tensors_are_written_in_place(self, network: ExecutableNetwork) -> None:
        """Contiguous and strided, by each inference, until the tensor is unset."""
        request = network.create_infer_request()
        *outer, last = self.basic.shape
        total = np.full(self.basic.shape, np.nan, np.float32)
        wide = np.full((*outer, 2 * last), np.nan, np.float32)
        request.set_tensor("total", total)
        request.set_output_tensor("product", wide[..., ::2])
        for seed in range(3):
            sample = self.basic.sample(seed)
            result = request.infer(sample.inputs)
            self.assert_outputs(result, sample.outputs)
            assert result["total"] is total
            self.assert_value(wide[..., ::2], sample.outputs["product"], "the strided array")
        assert np.isnan(wide[..., 1::2]).all(), "numbers were written between the elements of the strided array"
        request.set_output_tensor("total", None)
        before = total.copy()
        assert request.infer(self.basic.sample(7).inputs)["total"] is not total
        np.testing.assert_array_equal(total, before)

    def test_output_tensor_may_be_an_input(self, network: ExecutableNetwork) -> None:
        """Updating a state in place gives the same results as with two arrays."""
        request, sample = network.create_infer_request(), self.basic.sample()
        state = sample.inputs["a"].copy()
        request.set_tensor("a", state)
        request.set_tensor("b", sample.inputs["b"])
        request.set_tensor("total", state)
        self.assert_outputs(request.infer(), sample.outputs)
        self.assert_value(state, sample.outputs["total"], "the array that is input and output")

    def test_output_tensor_of_a_dynamic_output(self, core: Core) -> None:
        """A tensor that does not fit the inputs is refused and not written; the request stays usable."""
        add = helper.make_node("Add", ["x", "x"], ["y"])
        model = make_model([add], [tensor("x", ["N", 2])], [tensor("y", ["N", 2])])
        request = self.compile_or_skip(core, Case("dynamic output", model, ())).create_infer_request()
        out = np.full((3, 2), np.nan, np.float32)
        request.set_tensor("y", out)
        with pytest.raises(InputError, match=r"y.*\(4, 2\).*\(3, 2\)"):
            request.infer({"x": values((4, 2))})
        assert np.isnan(out).all()
        assert request.infer({"x": values((3, 2))})["y"] is out
        self.assert_value(out, values((3, 2)) * 2, "the array set for y")

    def test_dimensions_of_one_name_have_one_length(self, core: Core) -> None:
        """Inputs that are valid individually but not together are refused before they reach the device."""
        model = make_model(
            [helper.make_node("Add", ["x", "z"], ["y"])], [tensor("x", ["N"]), tensor("z", ["N"])], [tensor("y", ["N"])]
        )
        network = self.compile_or_skip(core, Case("dynamic inputs", model, ()))
        request = network.create_infer_request()
        x = values((3,))
        with pytest.raises(InputError, match=r"N.*`x`\[0\] is 3.*`z`\[0\] is 1"):
            request.infer([x, x[:1]])
        for length in (3, 1):
            self.assert_outputs(request.infer([x[:length], x[:length]]), {"y": x[:length] * 2})

    @pytest.mark.parametrize("op_type", ["Add", "MatMul"])
    def test_lengths_that_contradict_each_other_are_refused(self, core: Core, op_type: str) -> None:
        """If only a node relates the lengths of two inputs, the message names the node."""
        node = helper.make_node(op_type, ["x", "z"], ["y"], name="culprit")
        model = make_model([node], [tensor("x", ["a", "b"]), tensor("z", ["c", "d"])], [tensor("y", ["e", "f"])])
        request = self.compile_or_skip(core, Case("dynamic inputs", model, ())).create_infer_request()
        x, wrong = values((3, 3)), values((4, 3))
        with pytest.raises(EngineError, match="culprit"):
            request.infer([x, wrong])
        self.assert_outputs(request.infer([x, x]), {"y": x + x if op_type == "Add" else x @ x})

    @pytest.mark.parametrize("what", _wrong_values(()))
    def test_wrong_input_is_refused_and_nothing_stays_bound(self, network: ExecutableNetwork, what: str) -> None:
        """All inputs of a call are set, or none; the request keeps its previous inputs."""
        wrong, words = _wrong_values(self.basic.shape)[what]
        old, new = self.basic.sample(1), self.basic.sample(2)
        request = network.create_infer_request()
        request.infer(old.inputs)
        attempts: list[Callable[[], object]] = [
            lambda: request.infer({"b": new.inputs["b"], "a": wrong}),
            lambda: request.start_async({"b": new.inputs["b"], "a": wrong}),
            lambda: request.infer([wrong, new.inputs["b"]]),
            lambda: request.set_tensor("a", wrong),
            lambda: network({"a": wrong, "b": new.inputs["b"]}),
        ]
        for attempt in attempts:
            with pytest.raises(InputError) as caught:
                attempt()
            assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
            self.assert_outputs(request.infer(), old.outputs)
        self.check_usable(request, new)

    @pytest.mark.parametrize("key", ["A", "total", 2, -1, None])
    def test_unknown_input_is_refused_listing_the_inputs(self, network: ExecutableNetwork, key: Any) -> None:
        """The message lists the existing names."""
        request, sample = network.create_infer_request(), self.basic.sample()
        for target in (request.infer, request.start_async, network):
            with pytest.raises(InputError, match=r"inputs: a, b"):
                target({**sample.inputs, key: sample.inputs["a"]})
        self.check_usable(request, sample)

    def test_missing_input_is_refused(self, network: ExecutableNetwork) -> None:
        """A missing input is refused by its name before anything runs."""
        request, sample = network.create_infer_request(), self.basic.sample()
        right = f"[{','.join(map(str, self.basic.shape))}]"
        for attempt in (request.infer, request.start_async):
            with pytest.raises(InputError, match=rf"`b` \(f32{re.escape(right)}\) is missing"):
                attempt({"a": sample.inputs["a"]})
        for inputs in ([sample.inputs["a"]], sample.inputs["a"], [sample.inputs["a"]] * 3):
            with pytest.raises(InputError, match="expected 2"):
                request.infer(inputs)
        self.check_usable(request, sample)

    @pytest.mark.parametrize("what", ["element type", "shape", "read-only", "no array"])
    def test_wrong_output_tensor_is_refused(self, network: ExecutableNetwork, what: str) -> None:
        """When it is set, not when an inference has run."""
        request, sample, shape = network.create_infer_request(), self.basic.sample(), self.basic.shape
        array, words = {
            "element type": (np.zeros(shape, np.float64), "float64"),
            "shape": (np.zeros(shape[::-1], np.float32), re.escape(str(shape[::-1]))),
            "read-only": (np.broadcast_to(np.zeros(shape[-1], np.float32), shape), "read-only"),
            "no array": ([1.0], "list"),
        }[what]
        with pytest.raises(InputError, match=rf"`total`.*{words}"):
            request.set_tensor("total", array)
        self.check_usable(request, sample)

    def test_unknown_tensor_and_output_are_refused(self, network: ExecutableNetwork) -> None:
        """Unknown names are refused with the existing ones; outputs before the first inference, with the reason."""
        request, sample = network.create_infer_request(), self.basic.sample()
        with pytest.raises(InputError, match="tensors: a, b, total, product"):
            request.set_tensor("nothing", sample.inputs["a"])
        with pytest.raises(InputError, match="not set"):
            request.get_tensor("a")
        with pytest.raises(InferError, match="no inference has finished"):
            request.get_tensor("total")
        with pytest.raises(InferError, match="no results"):
            _ = request.results
        with pytest.raises(InferError, match="never started"):
            request.wait(0)
        result = request.infer(sample.inputs)
        for key in ("sum", 2, -1):
            with pytest.raises(KeyError, match="total, product"):
                _ = result[key]


class _Foreign:
    """A tensor of another library, with only the DLPack protocol."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()
