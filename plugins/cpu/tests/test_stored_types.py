"""Networks stored in f16 or bf16: CPU computes them in f32, natively, and rounds only the answer.

If a network fails here, the models that most people download today run on the reference evaluator, or wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from engine import Core
from engine.ir import ElementType
from engine.ir.element_type import bf16, f16, f32
from engine.plugin_api import SupportLevel
from engine.testing.models import relative_error
from engine.testing.networks import NETWORKS, SeededNetwork, rounding_tolerance, seeded_network

UNIT = {f16: 2.0**-11, bf16: 2.0**-8}


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@cache
def small(name: str) -> SeededNetwork:
    return seeded_network(name, small=True)


def stored_in(network: SeededNetwork, element_type: ElementType) -> onnx.ModelProto:
    """The network with all weights, inputs and outputs in another type."""
    halves = convert_float_to_float16(
        network.model, op_block_list=[], min_positive_val=2.0**-24, max_finite_val=65504.0
    )
    return retyped(halves, f16, element_type)


def retyped(model: onnx.ModelProto, old: ElementType, new: ElementType) -> onnx.ModelProto:
    """The model with each tensor, value and Cast of one type in another."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in tensors(graph):
        if tensor.data_type == old.onnx:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(new.numpy), tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == old.onnx:
            value.type.tensor_type.elem_type = new.onnx
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == old.onnx:
                attribute.i = new.onnx
    return made


def tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)


def cast(arrays: Any, element_type: ElementType) -> dict[str, np.ndarray]:
    return {name: v.astype(element_type.numpy) if v.dtype.kind not in "iub" else v for name, v in arrays.items()}


@pytest.mark.parametrize("element_type", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_answer_is_that_of_f32_rounded_once(core: Core, name: str, element_type: ElementType) -> None:
    """The same weights and inputs, widened beforehand, give the exact answer."""
    model, inputs = stored_in(small(name), element_type), cast(small(name).inputs, element_type)
    assert core.query_model(model, "CPU").at(SupportLevel.NATIVE).keys() == core.query_model(model, "CPU").nodes.keys()
    network = core.compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    widened = retyped(model, element_type, f32)
    exact = core.compile_model(widened, "CPU", {"ALLOW_REFERENCE": False})(cast(inputs, f32))
    roundings = 1 + sum(node.op_type == "Cast" for node in model.graph.node)  # of the answer, and by each Cast
    for got, wanted in zip(network(inputs).values(), exact.values(), strict=True):
        assert got.dtype == element_type.numpy
        tolerance = roundings * UNIT[element_type] + rounding_tolerance(widened)
        assert relative_error(got.astype(np.float32), wanted) <= tolerance


def test_an_exported_network_gives_the_very_answer(core: Core) -> None:
    network = core.compile_model(stored_in(small("bert_base"), f16), "CPU")
    inputs, stream = cast(small("bert_base").inputs, f16), BytesIO()
    network.export_model(stream)
    imported = core.import_model(stream.getvalue(), "CPU")
    for got, wanted in zip(imported(inputs).values(), network(inputs).values(), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("rows", [1, 3, 8, 12, 40])
@pytest.mark.parametrize("element_type", [f16, bf16], ids=str)
def test_large_weights_stay_in_16_bits(core: Core, element_type: ElementType, rows: int) -> None:
    """They are half of an export, and half of what few rows have to read; the answer equals the same in f32."""
    random = np.random.default_rng(rows)
    k, n = 1700, 300  # long enough for several parts of K, with a partial tile of columns
    weights = (random.standard_normal((k, n)) / k**0.5).astype(element_type.numpy)
    weights[0, :3] = np.array([2.0**-24, -0.0, 2.0**-10]).astype(element_type.numpy)
    x = random.standard_normal((rows, k)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, n])],
        [helper.make_tensor("w", element_type.onnx, [k, n], weights.tobytes(), raw=True)],
    )  # fmt: skip
    compiled = core.compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), "CPU")
    exact = x.astype(np.float64) @ weights.astype(np.float64)
    bound = 2.0**-24 * np.sqrt(k) * np.abs(x).astype(np.float64) @ np.abs(weights.astype(np.float64))
    answer = compiled({"x": x})["y"]
    assert (np.abs(answer - exact) <= bound).all()
    blob = BytesIO()
    compiled.export_model(blob)
    assert len(blob.getvalue()) < 2.2 * k * n
    blob.seek(0)
    np.testing.assert_array_equal(core.import_model(blob, "CPU")({"x": x})["y"], answer)
