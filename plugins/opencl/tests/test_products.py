"""Products and convolutions of awkward shapes, in the kernels for CPUs and in those for GPUs.

If a case fails here, some layer of some user's network is wrong on one kind of device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, Result, f32
from engine.ops.internal import ACTIVATIONS, Activation, FusedMatMul, apply_activation


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=request.param))
    return str(request.param)


def random_values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def check(build: Any, *values: np.ndarray) -> None:
    """The device's answer equals CPU's, up to rounding."""
    parameters = [Parameter(f32, value.shape) for value in values]
    node: Node = build(*parameters)
    model = Model([Result(node)], parameters, name="case")
    inputs = list(values)
    (expected,) = Core().compile_model(model, "CPU")(inputs).values()
    (found,) = Core().compile_model(model, "OPENCL")(inputs).values()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * float(np.max(np.abs(expected), initial=0)))


PRODUCTS = [
    ((1, 7), (7, 5)),
    ((17, 33), (33, 16)),
    ((16, 64), (64, 256)),
    ((65, 100), (100, 256)),
    ((70, 40), (40, 129)),
    ((40, 9), (9, 15)),
    ((3, 2, 20, 16), (3, 2, 16, 37)),
    ((3, 2, 20, 16), (2, 16, 37)),
    ((3, 1, 20, 16), (1, 2, 16, 37)),
    ((2, 3, 20, 16), (16, 40)),
    ((8,), (8, 3)),
    ((20, 8), (8,)),
    ((0, 8), (8, 3)),
    ((2, 300), (300, 512)),
    ((150, 300), (300, 50)),
    ((20, 0), (0, 17)),
    ((2, 9, 4, 30), (2, 1, 30, 4)),
    ((0, 2, 9, 3), (3, 17)),
    ((0, 2, 9, 3), (0, 2, 3, 40)),
]


@pytest.mark.parametrize("constant", [None, 0, 1])
@pytest.mark.parametrize(("x", "y"), PRODUCTS)
def test_matmul(kind: str, x: tuple[int, ...], y: tuple[int, ...], constant: int | None) -> None:
    values = [random_values(*x), random_values(*y)]
    if constant == 0:
        check(lambda b: ops.create("MatMul", [Constant(values[0]), b], {}), values[1])
    elif constant == 1:
        check(lambda a: ops.create("MatMul", [a, Constant(values[1])], {}), values[0])
    else:
        check(lambda a, b: ops.create("MatMul", [a, b], {}), *values)


@pytest.mark.parametrize("y", [(8,), (8, 20)])
def test_a_sum_of_one_value_a_place_of_the_last_axis(kind: str, y: tuple[int, ...]) -> None:
    """A value per row if the right operand is a vector. Against numpy, since devices share the fusing passes."""
    x, w, added = random_values(3, 20, 8), random_values(*y), random_values(20)
    parameter = Parameter(f32, x.shape)
    model = Model([Result(ops.Add(ops.MatMul(parameter, Constant(w)), Constant(added)))], [parameter])
    (found,) = Core().compile_model(model, "OPENCL")([x]).values()
    # Nine roundings of f32 in each of two orders of summing up, at most of the sum of all magnitudes.
    magnitude = float((np.abs(x) @ np.abs(w) + np.abs(added)).max())
    np.testing.assert_allclose(found, x @ w + added, rtol=0, atol=2 * 9 * 2**-24 * magnitude)


def test_a_stack_and_a_transposed_matrix(kind: str) -> None:
    check(lambda a, b: FusedMatMul(a, b, trans_b=True), random_values(3, 2, 5, 7), random_values(9, 7))


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(kind: str, trans_a: int, trans_b: int, is_constant: bool) -> None:
    a, b = random_values(*((21, 35) if trans_a else (35, 21))), random_values(*((50, 21) if trans_b else (21, 50)))
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    bias = random_values(35, 1)
    if is_constant:
        check(lambda x: ops.create("Gemm", [x, Constant(b), Constant(bias)], attributes), a)
    else:
        check(lambda x, y, z: ops.create("Gemm", [x, y, z], attributes), a, b, bias)


def conv(x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> Any:
    return pytest.param(x, w, attributes, id=f"{x}-{w}-{'-'.join(f'{k}={v}' for k, v in attributes.items())}")


CONVOLUTIONS = [
    conv((2, 3, 19), (5, 3, 4), pads=[1, 2]),
    conv((1, 16, 7, 7), (24, 16, 3, 3), pads=[1, 1, 1, 1]),
    conv((1, 40, 9, 20), (24, 40, 3, 3), pads=[1, 1, 1, 1]),
    conv((2, 8, 14, 9), (16, 8, 1, 1)),
    conv((1, 8, 14, 9), (16, 8, 1, 1), strides=[2, 2]),
    conv((1, 8, 2, 2), (16, 8, 1, 1)),
    conv((1, 3, 30, 31), (17, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
    conv((1, 4, 30, 31), (8, 4, 3, 3), strides=[3, 2], dilations=[2, 3], pads=[2, 0, 1, 4]),
    conv((1, 4, 20, 31), (8, 4, 3, 3)),
    conv((2, 8, 12, 13), (16, 2, 3, 3), group=4, pads=[1, 1, 1, 1]),
    conv((2, 8, 12, 13), (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1]),
    conv((1, 8, 30, 30), (8, 1, 5, 5), group=8, strides=[2, 2], auto_pad="SAME_LOWER"),
    conv((1, 8, 20, 20), (8, 1, 3, 3), group=8),
    conv((1, 4, 6, 7, 8), (6, 4, 2, 3, 2), strides=[2, 1, 2], pads=[1, 1, 1, 0, 1, 1]),
    conv((1, 4, 9, 9), (8, 4, 3, 3), pads=[3, 3, 3, 3]),
    conv((0, 4, 9, 9), (8, 4, 3, 3)),
    conv((0, 8, 9, 9), (8, 1, 3, 3), group=8),
]


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_convolution(
    kind: str, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], is_constant: bool
) -> None:
    check_convolution("Conv", x, w, w[0], attributes, is_constant)


TRANSPOSED = [
    conv((2, 3, 9), (3, 5, 4), strides=[3], pads=[1, 2]),
    conv((1, 6, 7, 8), (6, 4, 2, 2), strides=[2, 2]),
    conv((1, 6, 7, 8), (6, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 0]),
    conv((1, 6, 7, 8), (6, 2, 3, 3), strides=[1, 2], dilations=[2, 1], group=3),
    conv((1, 6, 7, 8), (6, 4, 1, 1), strides=[2, 3]),
    conv((1, 4, 7, 8), (4, 1, 4, 4), strides=[2, 2], group=4, pads=[1, 1, 1, 1]),
    conv((1, 2, 3, 4, 5), (2, 3, 3, 2, 2), strides=[2, 2, 1]),
]


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_transposed_convolution(
    kind: str, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], is_constant: bool
) -> None:
    check_convolution("ConvTranspose", x, w, w[1] * attributes.get("group", 1), attributes, is_constant)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_of_products(kind: str, name: str) -> None:
    """Kernels for CPUs apply it to vectors."""
    activation = Activation(name, (0.25, 0.75)[: len(ACTIVATIONS[name])])
    rows, columns = random_values(32, 24), Constant(random_values(24, 48))
    check(lambda x: apply_activation(ops.MatMul(x, columns).output(0), activation).node, rows)
    image, filters = random_values(1, 16, 7, 7), Constant(random_values(32, 16, 3, 3))
    check(lambda x: apply_activation(ops.Conv(x, filters).output(0), activation).node, image)


def check_convolution(
    op: str, x: tuple[int, ...], w: tuple[int, ...], channels: int, attributes: dict[str, Any], is_constant: bool
) -> None:
    """With a bias, and an activation that is fused."""
    values = [random_values(*x), random_values(*w), random_values(channels)]

    def build(*given: Any) -> Node:
        rest = [Constant(value) for value in values[len(given) :]]
        return ops.Relu(ops.create(op, [*given, *rest], attributes))

    check(build, *(values[:1] if is_constant else values))
