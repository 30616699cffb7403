"""Networks quantized by onnxruntime's tool: CPU computes every node natively, and the quantized network's answer.

If a network fails here, quantized models run on the reference evaluator, dozens of times slower, or wrongly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from engine import Core, ops
from engine.ir import Model, Parameter, f32
from engine.ops.evaluator import ModelEvaluator
from engine.plugin_api import SupportLevel
from engine.testing.models import relative_error
from engine.testing.networks import SeededNetwork, seeded_network

TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "u16s8": (QuantType.QUInt16, QuantType.QInt8),
}


class Sample(CalibrationDataReader):  # type: ignore[misc]
    """One set of inputs."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs: dict[str, Any] | None = inputs

    def get_next(self) -> dict[str, Any] | None:
        found, self.inputs = self.inputs, None
        return found


@cache
def small(name: str) -> SeededNetwork:
    return seeded_network(name, small=True)


def quantized(name: str, types: str, folder: Path, form: QuantFormat = QuantFormat.QDQ) -> onnx.ModelProto:
    activations, weights = TYPES[types]
    source, target = folder / "source.onnx", folder / "quantized.onnx"
    onnx.save(small(name).model, source)
    quantize_static(
        source,
        target,
        Sample(dict(small(name).inputs)),
        quant_format=form,
        per_channel=name != "bert_base",
        activation_type=activations,
        weight_type=weights,
        # Without VNNI, onnxruntime adds two products of u8 and i8 in 16 bits, which weights of 7 bits do not exceed.
        reduce_range=form is QuantFormat.QOperator,
        extra_options={"UseQDQContribOps": False},
    )
    return onnx.load(target)


def onnxruntime_answer(model: onnx.ModelProto, inputs: Any) -> np.ndarray:
    """The answer without optimizations, which would replace f32 by integers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(inputs))[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("resnet50", "u8s8"), ("mobilenet_v2", "u8s8"), ("efficientnet_b0", "s8s8"), ("squeezenet", "s8s8"),
        ("squeezenet", "u16s8"), ("bert_base", "u8s8"), ("bert_base", "u16s8"),
    ],
)  # fmt: skip
def test_the_answer_is_that_of_the_quantized_network(name: str, types: str, tmp_path: Path) -> None:
    """A sum near the middle of two codes may be rounded to either: a tenth of what quantization changes is allowed."""
    check(name, quantized(name, types, tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["squeezenet", "efficientnet_b0", "bert_base"])
def test_the_answer_is_that_of_the_network_in_qoperator_format(name: str, tmp_path: Path) -> None:
    check(name, quantized(name, "u8s8", tmp_path, QuantFormat.QOperator))


def check(name: str, model: onnx.ModelProto) -> None:
    """Assert that CPU computes a quantized network natively, and its answer."""
    inputs = small(name).inputs
    answer = Core().query_model(model, "CPU")
    assert not {n: s for n, s in answer.nodes.items() if s.level is not SupportLevel.NATIVE}
    (got, *_) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(inputs).values()
    exact, unquantized = onnxruntime_answer(model, inputs), onnxruntime_answer(small(name).model, inputs)
    assert relative_error(exact, unquantized) > 0
    assert relative_error(got, exact) <= 0.1 * relative_error(exact, unquantized)


@pytest.mark.parametrize("channels", [3, 20])
@pytest.mark.parametrize("dilations", [(2, 1), (1, 2)])
def test_dilated_convolutions_of_integers(channels: int, dilations: tuple[int, int]) -> None:
    """Maps of few channels have a kernel of their own, which reads runs of pixels."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (2, channels, 9, 11)).astype(np.uint8)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(100), "w_scale": np.float32(0.01),
        "w": rng.integers(-127, 128, (17, channels, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale"], ["weights"]),
        onnx.helper.make_node("Conv", ["real", "weights"], ["y"], dilations=dilations, pads=[1, 2, 2, 1]),
    ]
    check_small(nodes, constants, {"x": x})


@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "attributes"),
    [
        ((1, 32, 4, 6), 17, (2, 2), {"strides": [2, 2]}),
        ((2, 20, 5, 4), 16, (4, 3), {"strides": [2, 3], "pads": [1, 0, 1, 1]}),
        ((1, 3, 3, 3), 5, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((1, 16, 1, 1), 3, (1, 2), {"strides": [3, 3], "dilations": [1, 2], "output_padding": [2, 1]}),
        ((1, 8, 7), 6, (5,), {"strides": [2], "auto_pad": "SAME_UPPER"}),
        ((1, 8, 2, 9), 6, (3, 5), {"dilations": [2, 3]}),
        ((1, 32, 3, 4), 32, (4, 4), {"group": 32, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 12, 3, 4), 18, (3, 2), {"group": 3, "strides": [1, 2]}),
        ((1, 64, 3, 4), 32, (2, 2), {"group": 2, "strides": [2, 2]}),
    ],
)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_transposed_convolutions_of_integers(
    shape: tuple[int, ...], outputs: int, kernel: tuple[int, ...], attributes: dict[str, Any], kind: Any
) -> None:
    """A tap of padding has the value of the zero point, and outputs that no tap meets are the bias."""
    rng, limits, groups = np.random.default_rng(7), np.iinfo(kind), attributes.get("group", 1)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": kind(-30 if kind is np.int8 else 100),
        "w_scale": rng.uniform(0.01, 0.02, () if groups > 1 else outputs).astype(np.float32),
        "w": rng.integers(-127, 128, (shape[1], outputs // groups, *kernel)).astype(np.int8),
        "w_zero": np.zeros(() if groups > 1 else outputs, np.int8),
        "bias": rng.standard_normal(outputs).astype(np.float32),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], axis=1),
        onnx.helper.make_node("ConvTranspose", ["real", "weights", "bias"], ["sums"], **attributes),
        onnx.helper.make_node("Relu", ["sums"], ["y"]),
    ]
    inputs = {"x": rng.integers(limits.min, limits.max + 1, shape).astype(kind)}
    check_small(nodes, constants, inputs)
    answer = Core().query_model(small_model(nodes, constants, inputs), "CPU")
    assert not any(support.precision_reason for support in answer.nodes.values())


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 32, 6, 7), (64, 4, 3, 3), {"group": 8, "pads": [1, 1, 1, 1], "strides": [1, 2]}),
        ((1, 48, 4, 5), (48, 24, 1, 2), {"group": 2, "dilations": [1, 3]}),  # computed as one group
        ((1, 6, 4, 5), (4, 3, 2, 2), {"group": 2}),
        ((1, 96, 9), (96, 8, 3), {"group": 12, "dilations": [2]}),
        ((1, 20, 9, 11), (20, 1, 3, 3), {"group": 20, "pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        ((2, 3, 9, 11), (3, 1, 3, 2), {"group": 3, "pads": [1, 0, 2, 1], "dilations": [1, 4], "strides": [2, 1]}),
        ((1, 17, 30), (17, 1, 5), {"group": 17, "dilations": [3]}),
        ((1, 4, 40, 40), (4, 1, 3, 3), {"group": 4, "dilations": [12, 12]}),  # in f32
        ((1, 32, 5, 5), (64, 1, 3, 3), {"group": 32}),  # in f32
    ],
)
def test_groups_and_dilations_that_no_kernel_has(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """Several groups are computed as one, and the taps of depthwise kernels are spread, with weights of zero."""
    rng = np.random.default_rng(10)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(100), "w": rng.integers(-127, 128, weights).astype(np.int8),
        "w_zero": np.zeros(weights[0], np.int8), "bias": rng.standard_normal(weights[0]).astype(np.float32),
        "w_scale": rng.uniform(0.01, 0.02, weights[0]).astype(np.float32),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], axis=0),
        onnx.helper.make_node("Conv", ["real", "weights", "bias"], ["y"], **attributes),
    ]
    check_small(nodes, constants, {"x": rng.integers(0, 256, shape).astype(np.uint8)})


@pytest.mark.parametrize("zeros", ["one", "each"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 3, 9, 11), (17, 3, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),  # few channels
        ((1, 20, 7, 6), (18, 20, 3, 2), {"pads": [1, 1, 1, 1], "dilations": [2, 1]}),
        ((1, 32, 5, 5), (48, 32, 1, 1), {"strides": [2, 2]}),
        ((1, 32, 4, 5), (32, 16, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((1, 6, 4, 5), (6, 1, 3, 3), {"group": 6}),
        ((1, 12, 4, 5), (20, 3, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        ((1, 64, 4, 5), (32, 8, 2, 2), {"group": 8, "dilations": [1, 2]}),
        ((5, 7), (7, 33), None),  # a product
        ((3, 5, 64), (64, 16), None),
    ],
)
def test_weights_with_zero_points(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any] | None, kind: Any, zeros: str
) -> None:
    """The sum of the activations that a weight meets is subtracted; the largest zero points must not overflow."""
    rng = np.random.default_rng(8)
    limits, channels = np.iinfo(kind), weights[0 if attributes is not None else 1]
    points = np.resize(np.array([limits.max, limits.min, 3], kind), channels)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(100), "w": rng.integers(limits.min, limits.max + 1, weights),
        "w_scale": rng.uniform(0.01, 0.02, channels).astype(np.float32) if zeros == "each" else np.float32(0.01),
        "w_zero": points if zeros == "each" else kind(limits.max),
    }  # fmt: skip
    constants["w"] = constants["w"].astype(kind)
    axis = 0 if attributes is not None else 1
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], axis=axis),
        onnx.helper.make_node(
            "MatMul" if attributes is None else "Conv", ["real", "weights"], ["y"], **attributes or {}
        ),
    ]
    check_small(nodes, constants, {"x": rng.integers(0, 256, shape).astype(np.uint8)})


@pytest.mark.parametrize("zeros", ["one", "each"])
def test_a_dynamic_product_whose_weights_have_zero_points(zeros: str) -> None:
    rng = np.random.default_rng(9)
    constants = {
        "w": rng.integers(0, 128, (40, 35)).astype(np.uint8), "w_scale": np.float32(0.01),
        "w_zero": np.uint8(60) if zeros == "one" else rng.integers(0, 128, 35).astype(np.uint8),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "x_scale", "x_zero"]),
        onnx.helper.make_node("MatMulInteger", ["codes", "w", "x_zero", "w_zero"], ["sums"]),
        onnx.helper.make_node("Cast", ["sums"], ["real_sums"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["x_scale", "w_scale"], ["scale"]),
        onnx.helper.make_node("Mul", ["real_sums", "scale"], ["y"]),
    ]
    check_small(nodes, constants, {"x": rng.standard_normal((3, 40)).astype(np.float32)})


def test_clip_with_a_minimum_above_the_maximum_gives_the_maximum() -> None:
    rng = np.random.default_rng(2)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(100), "w_scale": np.float32(0.01), "y_scale": np.float32(0.03),
        "y_zero": np.int8(5), "w": rng.integers(-127, 128, (6, 7)).astype(np.int8), "low": np.float32(1),
        "high": np.float32(0.5),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale"], ["weights"]),
        onnx.helper.make_node("MatMul", ["real", "weights"], ["product"]),
        onnx.helper.make_node("Clip", ["product", "low", "high"], ["clipped"]),
        onnx.helper.make_node("QuantizeLinear", ["clipped", "y_scale", "y_zero"], ["codes"]),
        onnx.helper.make_node("DequantizeLinear", ["codes", "y_scale", "y_zero"], ["y"]),
    ]
    check_small(nodes, constants, {"x": rng.integers(0, 256, (3, 6)).astype(np.uint8)})


@pytest.mark.parametrize(("residual_scale", "middle_scale"), [(1e30, 0.02), (0.02, 1e30)])
def test_scales_whose_quotient_overflows(residual_scale: float, middle_scale: float) -> None:
    rng = np.random.default_rng(3)
    constants = {
        "x_scale": np.float32(0.02), "zero": np.uint8(100), "w_scale": np.float32(0.01), "y_scale": np.float32(1e-30),
        "residual_scale": np.float32(residual_scale), "middle_scale": np.float32(middle_scale),
        "w": rng.integers(-127, 128, (6, 7)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale"], ["weights"]),
        onnx.helper.make_node("MatMul", ["real", "weights"], ["product"]),
        onnx.helper.make_node("QuantizeLinear", ["product", "middle_scale", "zero"], ["middle_codes"]),
        onnx.helper.make_node("DequantizeLinear", ["middle_codes", "middle_scale", "zero"], ["middle"]),
        onnx.helper.make_node("DequantizeLinear", ["residual_codes", "residual_scale", "zero"], ["residual"]),
        onnx.helper.make_node("Add", ["middle", "residual"], ["sum"]),
        onnx.helper.make_node("QuantizeLinear", ["sum", "y_scale", "zero"], ["codes"]),
        onnx.helper.make_node("DequantizeLinear", ["codes", "y_scale", "zero"], ["y"]),
    ]
    inputs = {"x": (3, 6), "residual_codes": (3, 7)}
    check_small(nodes, constants, {k: rng.integers(0, 256, shape).astype(np.uint8) for k, shape in inputs.items()})


SPECIAL = {
    "ordinary": [], "nan": [np.nan], "inf": [np.inf, 1.0], "-inf": [-np.inf, 1.0], "zero": [0.0, -0.0],
    "denormal": [1e-44, -3e-45], "large": [3e38, -3e38], "small": [1e-30, 3e-30],
}  # fmt: skip


@pytest.mark.parametrize("special", SPECIAL)
def test_dynamic_codes_are_those_of_the_specification(special: str) -> None:
    """Bit for bit, also where the scale is infinite, NaN or 0."""
    rng = np.random.default_rng(8)
    for shape in ((2, 3), (3, 50), (1, 64), (7, 131), (1, 1)):
        data = rng.standard_normal(shape).astype(np.float32)
        if SPECIAL[special]:
            data = np.resize(
                np.array([*SPECIAL[special], *data.ravel()[: special in ("nan", "inf")]], np.float32), shape
            )
        x = Parameter(f32, list(shape), "x")
        codes = ops.create("DynamicQuantizeLinear", [ops.Relu(x) if shape[0] == 3 else x], num_outputs=3)
        model = Model(list(codes.outputs), [x])
        network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
        for actual, wanted in zip(network([data]).values(), ModelEvaluator(model).run([data]), strict=True):
            np.testing.assert_array_equal(np.array(actual), wanted)


def test_a_dynamic_product_whose_result_is_quantized() -> None:
    """The scale of x is computed, so the result is quantized by a step of its own."""
    rng = np.random.default_rng(4)
    constants = {
        # In 7 bits: without VNNI, onnxruntime adds two products of u8 and i8 in 16 bits.
        "w": rng.integers(-64, 64, (6, 7)).astype(np.int8), "w_scale": np.float32(0.01), "y_scale": np.float32(0.03),
        "zero": np.int8(5),
    }  # fmt: skip
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "x_scale", "x_zero"]),
        onnx.helper.make_node("MatMulInteger", ["codes", "w", "x_zero"], ["sums"]),
        onnx.helper.make_node("Cast", ["sums"], ["real_sums"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["x_scale", "w_scale"], ["scale"]),
        onnx.helper.make_node("Mul", ["real_sums", "scale"], ["product"]),
        onnx.helper.make_node("Relu", ["product"], ["active"]),
        onnx.helper.make_node("QuantizeLinear", ["active", "y_scale", "zero"], ["y_codes"]),
        onnx.helper.make_node("DequantizeLinear", ["y_codes", "y_scale", "zero"], ["y"]),
    ]
    check_small(nodes, constants, {"x": rng.standard_normal((3, 6)).astype(np.float32)})


@pytest.mark.parametrize("operator", ["Conv", "MatMul"])
def test_a_bias_of_nan_is_quantized_as_elsewhere(operator: str) -> None:
    """NaN becomes the zero point, whichever kernel quantizes it."""
    rng = np.random.default_rng(5)
    is_conv = operator == "Conv"
    bias = np.array([0.5, np.nan, 1, -1], np.float32)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(100), "w_scale": np.float32(0.01), "y_scale": np.float32(0.03),
        "y_zero": np.uint8(5), "w": rng.integers(-127, 128, (4, 3, 1) if is_conv else (3, 4)).astype(np.int8),
        "bias": bias,
    }  # fmt: skip
    product = ["real", "weights", "bias"] if is_conv else ["real", "weights"]
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale"], ["weights"]),
        onnx.helper.make_node(operator, product, ["product"]),
        onnx.helper.make_node(
            "Identity" if is_conv else "Add", ["product"] if is_conv else ["product", "bias"], ["sum"]
        ),
        onnx.helper.make_node("QuantizeLinear", ["sum", "y_scale", "y_zero"], ["codes"]),
        onnx.helper.make_node("DequantizeLinear", ["codes", "y_scale", "y_zero"], ["y"]),
    ]
    inputs = {"x": rng.integers(0, 256, (1, 3, 6) if is_conv else (6, 3)).astype(np.uint8)}
    model = small_model(nodes, constants, inputs)
    got, exact = (Core().compile_model(model, device)(inputs)["y"] for device in ("CPU", "TEMPLATE"))
    np.testing.assert_array_equal(got, exact)


def check_small(nodes: list[onnx.NodeProto], constants: dict[str, Any], inputs: dict[str, np.ndarray]) -> None:
    """Assert that CPU computes the result y, of f32, as onnxruntime does."""
    model = small_model(nodes, constants, inputs)
    (got,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(inputs).values()
    np.testing.assert_allclose(got, onnxruntime_answer(model, inputs), rtol=1e-4, atol=1e-4)


def small_model(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], inputs: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """A model with the result y, of f32."""
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
