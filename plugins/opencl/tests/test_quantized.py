"""Products between quantizations, as a GPU with integer dot products computes them: within one quantum of TEMPLATE.

If this fails, a quantized model answers wrongly on such a GPU. The tests run the kernels on whatever device is there.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import DeviceFacts
from numpy.typing import NDArray

from engine import Core, Model, ops
from engine.ir import Constant, Node, Parameter, f32, i8, u8

Array = NDArray[Any]
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def integers(monkeypatch: pytest.MonkeyPatch) -> None:
    global RNG
    RNG = np.random.default_rng(7)
    monkeypatch.setattr(DeviceFacts, "multiplies_integers", True)


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def codes(*shape: int, kind: Any = np.int8) -> Array:
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(kind)


def values(data: Node | Array, scale: Any, zero_point: Any, axis: int = 0) -> Node:
    given = data if isinstance(data, Node) else Constant(data)
    return ops.DequantizeLinear(given, Constant(np.float32(scale)), Constant(zero_point), axis=axis)


def quantized(value: Node, scale: float, zero_point: Any) -> Node:
    return ops.QuantizeLinear(value, Constant(np.float32(scale)), Constant(zero_point))


def check(core: Core, model: Model, count: int = 1) -> None:
    """Assert that OPENCL multiplies integers, and that its answer is TEMPLATE's, here and after an export."""
    answer = core.query_model(model, "OPENCL").nodes.values()
    products = [support for support in answer if support.precision in ("u8", "i8")]
    assert len(products) >= count, answer
    assert not [support.precision_reason for support in answer if support.precision_reason]
    x = model.parameters[0]
    shape, kind = x.output(0).shape.get_shape(), x.output(0).element_type
    given = RNG.standard_normal(shape).astype(np.float32) if kind is f32 else codes(*shape, kind=kind.numpy)
    (expected,) = core.compile_model(model, "TEMPLATE")({x.friendly_name: given}).values()
    network = core.compile_model(model, "OPENCL")
    blob = io.BytesIO()
    network.export_model(blob)
    for each in (network, core.import_model(blob.getvalue(), "OPENCL")):
        (got,) = each({x.friendly_name: given}).values()
        assert got.dtype == expected.dtype
        if got.dtype == np.float32:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
        else:
            assert np.abs(got.astype(int) - expected.astype(int)).max(initial=0) <= 1
            assert (got != expected).mean() < 0.02


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 6), (5, 3, 3, 2), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
    ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6, "auto_pad": "SAME_UPPER"}),
    ((1, 10, 9), (6, 5, 3), {"group": 2, "dilations": (2,), "pads": (2, 2)}),
    ((1, 2, 4, 3, 5), (2, 2, 2, 2, 2), {"pads": (1, 1, 1, 0, 0, 0)}),
    ((1, 8, 4, 4), (17, 8, 1, 1), {}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "weights", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("kind", [u8, i8], ids=str)
@pytest.mark.parametrize("is_symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_convolutions(core: Core, shape: Any, weights: Any, attributes: Any, kind: Any, is_symmetric: bool) -> None:
    """Padding counts as 0, whatever the zero points; tails of words of four channels."""
    x, channels = Parameter(kind, shape, "x"), weights[0]
    scales = np.linspace(0.01, 0.03, channels)
    points = np.zeros(channels, np.int8) if is_symmetric else codes(channels)
    conv = ops.Conv(
        values(x, 0.02, kind.numpy.type(77)), values(codes(*weights), scales, points),
        Constant(RNG.standard_normal(channels).astype(np.float32)), **attributes,
    )  # fmt: skip
    check(core, Model([quantized(ops.Relu(conv), 0.2, np.uint8(3))], [x]), 3)


@pytest.mark.parametrize("k", [1, 7, 64])
@pytest.mark.parametrize("weight_type", [np.uint8, np.int8])
def test_products(core: Core, k: int, weight_type: Any) -> None:
    x = Parameter(u8, [2, 5, k], "x")
    weights = values(codes(k, 9, kind=weight_type), 0.02, weight_type(12))
    check(core, Model([ops.MatMul(values(x, 0.02, np.uint8(100)), weights)], [x]))


def test_the_result_of_a_gemm_is_quantized(core: Core) -> None:
    x = Parameter(i8, [5, 12], "x")
    weights = values(codes(9, 12), np.linspace(0.01, 0.02, 9), np.zeros(9, np.int8))
    bias = values(RNG.integers(-999, 999, 9).astype(np.int32), 4e-4, np.int32(0))
    product = ops.Gemm(values(x, 0.02, np.int8(-5)), weights, bias, transB=1)
    check(core, Model([quantized(product, 0.1, np.int8(4))], [x]), 2)


def test_a_residual_after_a_quantization(core: Core) -> None:
    """As onnxruntime's tool writes it: the sum is rounded before the residual is added."""
    x = Parameter(u8, [1, 4, 5, 5], "x")
    real = values(x, 0.02, np.uint8(100))
    conv = ops.Conv(real, values(codes(4, 4, 3, 3), 0.0103, np.int8(0)), pads=(1, 1, 1, 1))
    middle = values(quantized(conv, 0.05, np.uint8(120)), 0.05, np.uint8(120))
    check(core, Model([quantized(ops.Relu(ops.Add(middle, real)), 0.06, np.uint8(0))], [x]), 4)


def test_dynamic_quantization(core: Core) -> None:
    x = Parameter(f32, [6, 10], "x")
    found = ops.DynamicQuantizeLinear(x)
    sums = ops.MatMulInteger(found.output(0), Constant(codes(10, 8)), found.output(2), Constant(np.int8(0)))
    scale = ops.Mul(found.output(1), Constant(np.float32(0.01)))
    check(core, Model([ops.Mul(ops.Cast(sums, to=f32.onnx), scale)], [x]))


def test_without_dot_products_products_are_of_f32(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceFacts, "multiplies_integers", False)
    x = Parameter(u8, [5, 12], "x")
    weights = values(codes(12, 4), 0.02, np.int8(0))
    model = Model([ops.MatMul(values(x, 0.02, np.uint8(100)), weights, friendly_name="product")], [x])
    support = core.query_model(model, "OPENCL")["product"]
    assert (support.precision, support.precision_reason) == (
        "f32", "f32 is faster on this device: OPENCL multiplies integers on GPUs with cl_khr_integer_dot_product",
    )  # fmt: skip
