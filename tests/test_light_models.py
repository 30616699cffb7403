"""The networks that devices are judged by: the same everywhere, and sensitive enough to judge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine.errors import ModelError
from engine.testing import models

SMALL = ("squeezenet", "shufflenet")
HEAVY = ("bvlc_alexnet", "vgg19", "zfnet512")  # 240 to 580 MB of weights
ALL = [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in models.LIGHT_MODELS]


def run(model: onnx.ModelProto, name: str) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, models.light_input(name))[0])


@pytest.mark.parametrize("name", ALL)
def test_onnxruntime_gives_the_saved_answer(name: str) -> None:
    answer = models.light_answer(name)
    assert answer.size == 1000
    assert models.relative_error(run(models.light_model(name), name), answer) <= models.light_tolerance(name)


def test_weights_and_input_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for tensor in models.light_model("squeezenet").graph.initializer:
        digest.update(tensor.raw_data)
    digest.update(models.light_input("squeezenet")["data_0"].astype("<f4").tobytes())
    assert digest.hexdigest() == "55056072123cb9986ce3f720a6b89d35cb2561810183f83d3cc89187386843a3"


@pytest.mark.parametrize("name", [name for name in models.LIGHT_MODELS if name not in HEAVY])
def test_every_weight_is_real_and_no_softmax_is_left(name: str) -> None:
    model = models.light_model(name)
    onnx.checker.check_model(model)
    assert {node.op_type for node in model.graph.node}.isdisjoint({"Softmax", "ConstantOfShape"})
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor)
            assert np.unique(values).size >= min(values.size, 100) // 2, tensor.name


def doubled_epsilon(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f *= 2


def dropped_relu(graph: onnx.GraphProto) -> None:
    next(node for node in graph.node if node.op_type == "Relu").op_type = "Identity"


def dropped_bias(graph: onnx.GraphProto) -> None:
    del next(node for node in graph.node if node.op_type == "Conv" and len(node.input) == 3).input[2]


def shifted_padding(graph: onnx.GraphProto) -> None:
    pads = (attribute for node in graph.node for attribute in node.attribute if attribute.name == "pads")
    pad = next(pad for pad in pads if pad.ints[0] == 1 and pad.ints[2] == 1)
    pad.ints[0], pad.ints[2] = 0, 2


def swapped_channels(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "Concat")
    first, second = node.input[:2]
    node.input[0], node.input[1] = second, first


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("squeezenet", dropped_relu),
        ("squeezenet", dropped_bias),
        ("squeezenet", shifted_padding),
        ("squeezenet", swapped_channels),
        ("shufflenet", dropped_relu),
        ("shufflenet", shifted_padding),
        pytest.param("resnet50", doubled_epsilon, marks=pytest.mark.slow),
    ],
)
def test_one_mistake_in_one_layer_is_far_outside_the_tolerance(
    name: str, mistake: Callable[[onnx.GraphProto], None]
) -> None:
    model = models.light_model(name)
    mistake(model.graph)
    error = models.relative_error(run(model, name), models.light_answer(name))
    assert error > 3 * models.light_tolerance(name)


def test_a_result_that_is_not_a_number_is_infinitely_wrong() -> None:
    answer = models.light_answer("squeezenet")
    broken = answer.copy()
    broken.flat[7] = np.nan
    assert models.relative_error(broken, answer) == np.inf
    assert models.relative_error(answer, answer) == 0.0
    with pytest.raises(ModelError, match=r"shape \(3,\), expected \(1, 1000, 1, 1\)"):
        models.relative_error(np.zeros(3), answer)


@pytest.mark.parametrize("use", [models.light_model, models.light_input, models.light_answer, models.factors])
def test_an_unknown_name_lists_the_known_ones(use: Callable[[str], object]) -> None:
    with pytest.raises(ModelError, match=r"unknown light model `resnet`.*resnet50.*zfnet512"):
        use("resnet")


def test_a_model_that_does_not_end_in_softmax_keeps_its_end() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y){ z = Softmax(x) y = Relu(z) }'
    )
    before = model.SerializeToString()
    assert models.without_softmax(model).SerializeToString() == before
