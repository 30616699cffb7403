"""Bad numbers in quantized models: refused with node and value when read, or computed alike on every device.

If this fails, a model with a broken scale crashes, or gives an answer that depends on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine import Core
from engine.errors import EngineError

Array = NDArray[Any]
FLOATS = np.array([[1, -2.5, 300], [0, np.nan, np.inf]], np.float32)
CODES = np.array([[0, 7, 255], [100, 101, 128]], np.uint8)
WEIGHTS = (np.arange(6).reshape(3, 2) - 2).astype(np.int8)
STRANGE = [0.0, -0.0, -0.5, np.nan, np.inf, -np.inf, 1e-45, 3e38]


def model(
    nodes: list[onnx.NodeProto], x: Array, result: Any, computed: tuple[str, ...] = (), **constants: Any
) -> onnx.ModelProto:
    """A model of `x` and `computed`; the other numbers are constants."""
    kind = helper.np_dtype_to_tensor_dtype
    given = {"x": x, **{name: np.asarray(constants.pop(name)) for name in computed}}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind(value.dtype), value.shape) for name, value in given.items()],
        [helper.make_tensor_value_info("y", kind(np.dtype(result)), None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def quantize(*inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", inputs, [output], name="quantize", **attributes)


def dequantize(*inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", inputs, [output], name="dequantize", **attributes)


def check(proto: onnx.ModelProto, x: Array, devices: tuple[str, ...] = ("CPU", "OPENCL"), **others: Array) -> Array:
    """Assert that all devices give TEMPLATE's answer, bit for bit, and return it."""
    core, inputs = Core(), {"x": x, **others}
    (expected,) = core.compile_model(proto, "TEMPLATE")(inputs).values()
    for device in devices:
        if device in core.available_devices:
            (got,) = core.compile_model(proto, device)(inputs).values()
            np.testing.assert_array_equal(got, expected, err_msg=device, strict=True)
    return np.asarray(expected)


@pytest.mark.parametrize("scale", STRANGE)
def test_strange_scales(scale: float) -> None:
    """Quotients that are not numbers have the code of 0."""
    given = {"s": np.float32(scale), "z": np.uint8(7)}
    codes = check(model([quantize("x", "s", "z")], FLOATS, np.uint8, **given), FLOATS)
    assert codes[1, 1] == 7
    if not np.isfinite(scale):
        assert codes[0, 0] == 7
    check(model([dequantize("x", "s", "z")], CODES, np.float32, **given), CODES)


@pytest.mark.parametrize("scale", STRANGE)
@pytest.mark.parametrize("where", ["x", "w", "y"])
def test_strange_scales_around_a_product(scale: float, where: str) -> None:
    """Products of integers are for normal scales only."""
    scales = {f"{name}_scale": np.float32(scale if name == where else 0.1) for name in ("x", "w", "y")}
    nodes = [
        dequantize("x", "x_scale", "zero", output="a"),
        dequantize("w", "w_scale", output="b"),
        helper.make_node("MatMul", ["a", "b"], ["m"]),
        quantize("m", "y_scale", "zero"),
    ]
    check(model(nodes, CODES, np.uint8, w=WEIGHTS, zero=np.uint8(7), **scales), CODES)


def test_strange_scales_around_operators_that_move_codes() -> None:
    """With an infinite scale, and with one that makes codes infinite, quantizing does not undo dequantizing."""
    x = np.array([0, 7, 8, 100, 254, 255] * 4, np.uint8).reshape(1, 2, 3, 4)
    for scale in STRANGE:
        for node in ("MaxPool", "Transpose", "Relu", "Identity"):
            attributes = {"kernel_shape": [2, 2]} if node == "MaxPool" else {}
            nodes = [
                dequantize("x", "s", "z", output="a"),
                helper.make_node(node, ["a"], ["b"], **attributes),
                quantize("b", "s", "z"),
            ]
            check(model(nodes, x, np.uint8, s=np.float32(scale), z=np.uint8(7)), x)


IMAGE = np.array([0, 7, 8, 100, 254, 255] * 4, np.uint8).reshape(1, 2, 3, 4)
KERNEL = (np.arange(4).reshape(2, 2, 1, 1) - 1).astype(np.int8)
OTHERS = np.array([1, 7, 200], np.uint8)
_BINARY = "x x_scale zero w w_scale w_zero"
_RESULT = " y_scale zero"
QOPERATORS: dict[str, tuple[str, Array, Any, dict[str, Any]]] = {
    "QLinearConv": (_BINARY + _RESULT, IMAGE, KERNEL, {}),
    "QLinearConv with bias": (_BINARY + _RESULT + " bias", IMAGE, KERNEL, {}),
    "QLinearMatMul": (_BINARY + _RESULT, CODES, WEIGHTS, {}),
    "QGemm": (_BINARY + " bias" + _RESULT, CODES, WEIGHTS, {}),
    "QLinearAdd": (_BINARY + _RESULT, CODES, OTHERS, {}),
    "QLinearMul": (_BINARY + _RESULT, CODES, OTHERS, {}),
    "QLinearConcat": ("y_scale zero " + _BINARY, CODES, CODES, {"axis": 0}),
    "QLinearWhere": ("condition " + _BINARY + _RESULT, CODES, CODES, {}),
    "QLinearSigmoid": ("x x_scale zero" + _RESULT, CODES, None, {}),
    "QLinearLeakyRelu": ("x x_scale zero" + _RESULT, CODES, None, {"alpha": 0.1}),
    "QLinearSoftmax": ("x x_scale zero" + _RESULT, CODES, None, {"opset": 13}),
    "QLinearAveragePool": ("x x_scale zero" + _RESULT, IMAGE, None, {"kernel_shape": [2, 2]}),
    "QLinearGlobalAveragePool": ("x x_scale zero" + _RESULT, IMAGE, None, {}),
}


@pytest.mark.parametrize("is_computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("name", QOPERATORS)
def test_strange_scales_of_operators_of_codes(name: str, is_computed: bool) -> None:
    """They are what the operator makes of dequantized values: in particular, NaN has the code of 0."""
    inputs, x, w, attributes = QOPERATORS[name]
    op_type, names = name.split()[0], inputs.split()
    domain = "" if op_type in ("QLinearConv", "QLinearMatMul") else "com.microsoft"
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    numbers = {"zero": np.uint8(7), "w": w, "bias": np.int32([3, -4]), "condition": np.array([True, False, True])}
    numbers["w_zero"] = np.zeros((), np.uint8 if w is None else w.dtype)
    for where in ("x_scale", "w_scale", "y_scale"):
        for scale in (0.0, -0.5, np.nan, np.inf, 1e-45, 3e38) if where in names else ():
            given = {**numbers, **dict.fromkeys(("x_scale", "w_scale", "y_scale"), np.float32(0.13))}
            given[where] = np.float32(scale)
            proto = model([node], x, np.uint8, (where,) * is_computed, **{key: given[key] for key in {*names} - {"x"}})
            codes = check(proto, x, **{where: given[where]} if is_computed else {})
            if np.isnan(scale) and name != "QLinearWhere" and (where != "w_scale" or name != "QLinearConcat"):
                assert (codes[: len(x)] == 7).all()


REFUSED: dict[str, tuple[onnx.NodeProto, Array, dict[str, Any], tuple[str, ...]]] = {
    "a zero point of another type": (
        dequantize("x", "s", "z"), CODES, {"s": np.float32(1), "z": np.int8(7)}, ("dequantize", "i8", "x_zero_point"),
    ),
    "a result of another type": (
        quantize("x", "s", "z", output_dtype=onnx.TensorProto.INT8), FLOATS, {"s": np.float32(1), "z": np.uint8(7)},
        ("quantize", "INT8", "UINT8"),
    ),
    "an axis that does not exist": (
        dequantize("x", "s", axis=5), CODES, {"s": np.float32([1, 2, 3])}, ("dequantize", "axis 5", "-2..1"),
    ),
    "a negative axis that does not exist": (
        quantize("x", "s", axis=-3), FLOATS, {"s": np.float32([1, 2, 3])}, ("quantize", "axis -3", "-2..1"),
    ),
    "scales of another axis": (
        dequantize("x", "s", axis=0), CODES, {"s": np.float32([1, 2, 3])}, ("dequantize", "[3]", "[2]"),
    ),
    "a matrix of scales": (
        quantize("x", "s"), FLOATS, {"s": np.float32([[1, 2, 3]])}, ("quantize", "[1,3]", "[3]"),
    ),
    "too many blocks": (
        dequantize("x", "s", block_size=2), CODES, {"s": np.ones((2, 3), np.float32)}, ("dequantize", "[2,3]", "[2,2]"),
    ),
    "a negative block": (
        dequantize("x", "s", block_size=-2), CODES, {"s": np.ones((2, 2), np.float32)},
        ("dequantize", "block_size", "-2"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused_when_read(name: str) -> None:
    node, x, constants, words = REFUSED[name]
    with pytest.raises(EngineError) as refused:
        Core().read_model(model([node], x, np.float32 if node.name == "dequantize" else np.uint8, **constants))
    for word in words:
        assert word in str(refused.value)


def test_a_pair_of_different_types_is_refused_when_read() -> None:
    nodes = [quantize("x", "s", "z", output="codes"), dequantize("codes", "s", "other")]
    proto = model(nodes, FLOATS, np.float32, s=np.float32(1), z=np.uint8(7), other=np.int8(7))
    with pytest.raises(EngineError, match=r"`dequantize`: input 2 \(x_zero_point\) is i8\[\]"):
        Core().read_model(proto)


def test_the_last_block_may_be_shorter() -> None:
    scales = np.float32([[1, 2], [1, 4]])
    values = check(model([dequantize("x", "s", block_size=2)], CODES, np.float32, s=scales), CODES, ("CPU",))
    np.testing.assert_array_equal(values, CODES * np.float32([[1, 1, 2], [1, 1, 4]]))


def test_sums_of_integers_wrap_around_in_32_bits() -> None:
    """As in every kernel: the accumulator has 32 bits. Products between dequantizations are real, and saturate."""
    x, w = np.full((2, 70_000), 255, np.uint8), np.full((70_000, 2), 127, np.int8)
    product = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    sums = check(model([product], x, np.int32, w=w), x)
    assert (sums.astype(np.int64) == 70_000 * 255 * 127 - 2**32).all()
    nodes = [dequantize("x", "s", output="a"), dequantize("w", "s", output="b")]
    nodes += [helper.make_node("MatMul", ["a", "b"], ["m"]), quantize("m", "s", "z")]
    codes = check(model(nodes, x, np.uint8, w=w, s=np.float32(0.5), z=np.uint8(3)), x)
    assert (codes == 255).all()


RANGES: dict[str, Array] = {
    "infinity": np.float32([[1, np.inf], [2, 3]]),
    "minus infinity": np.float32([[1, -np.inf], [2, 3]]),
    "both": np.float32([[np.inf, -np.inf], [2, 3]]),
    "NaN": np.float32([[1, np.nan], [2, 3]]),
    "nothing": np.zeros((0, 2), np.float32),
    "no range": np.zeros((2, 2), np.float32),
    "a range that overflows": np.float32([[3e38, -3e38]]),
    "a range that is too small": np.float32([[1e-45, 0]]),
}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("output", [0, 1, 2])
def test_dynamic_quantization_of_strange_numbers(name: str, output: int) -> None:
    names = ["codes", "scale", "zero"]
    names[output] = "y"
    result = np.float32 if output == 1 else np.uint8
    node = helper.make_node("DynamicQuantizeLinear", ["x"], names)
    found = check(model([node], RANGES[name], result), RANGES[name])
    if name == "minus infinity" and output == 0:
        np.testing.assert_array_equal(found, [[255, 0], [255, 255]])  # onnxruntime's answer


@pytest.mark.parametrize("name", RANGES)
def test_a_dynamic_product_of_strange_numbers(name: str) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["codes", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["scale", "w_scale"], ["factor"]),
        helper.make_node("Mul", ["real", "factor"], ["y"]),
    ]
    found = check(model(nodes, RANGES[name], np.float32, w=WEIGHTS[:2], w_scale=np.float32(0.1)), RANGES[name])
    assert found.shape == (len(RANGES[name]), 2)


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("zero_point", [300, -5])
def test_a_zero_point_out_of_range_is_refused_when_read(zero_point: int, count: int) -> None:
    proto = model([dequantize("x", "scale", "zero", axis=0)], np.zeros(count, np.uint8), np.float32,
                  scale=np.ones(count, np.float32))  # fmt: skip
    stored = onnx.TensorProto(name="zero", data_type=onnx.TensorProto.UINT8, dims=[count])
    stored.int32_data.extend([zero_point] * count)
    proto.graph.initializer.append(stored)
    with pytest.raises(EngineError, match=f"tensor `zero`: int32_data has {zero_point}; u8 has 0 to 255"):
        Core().read_model(proto.SerializeToString())
