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
from onnx import TensorProto, numpy_helper
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
