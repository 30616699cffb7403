"""Transposed convolutions to few channels: which become products of pixels, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cpu.passes.transposed_conv_decomposition import TransposedConvDecomposition

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32
from engine.ops.internal import Activation, FusedConv
from engine.passes import Manager, check_equivalence


def constant(*shape: int) -> Constant:
    return Constant(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def transformed(model: Model) -> list[str]:
    graph = model.clone()
    manager = Manager()
    manager.register_pass(TransposedConvDecomposition)
    manager.run_passes(graph)
    check_equivalence(model, graph)
    assert not manager.run_passes(graph)
    return [node.op_type for node in graph.ordered_nodes() if node.op_type not in ("Parameter", "Constant", "Result")]


DECOMPOSED = ["FusedConv", "DepthToSpace"]


@pytest.mark.parametrize(
    ("channels", "outputs", "side", "attributes", "expected"),
    [
        (24, 1, 2, {}, DECOMPOSED),
        (64, 3, 2, {}, DECOMPOSED),
        (32, 3, 4, {}, DECOMPOSED),
        (128, 8, 2, {"pads": [0, 0, 0, 0]}, DECOMPOSED),
        (40, 5, 3, {"auto_pad": "VALID"}, DECOMPOSED),
        (4, 3, 2, {}, ["ConvTranspose"]),
        (128, 16, 2, {}, ["ConvTranspose"]),
        (64, 3, 1, {}, ["FusedConv"]),
        (64, 3, 2, {"pads": [1, 0, 0, 0]}, ["ConvTranspose"]),
        (64, 3, 2, {"output_padding": [1, 1]}, ["ConvTranspose"]),
        (64, 3, 2, {"output_shape": [6, 8]}, ["ConvTranspose"]),
        (64, 3, 2, {"dilations": [2, 2]}, ["ConvTranspose"]),
        (64, 3, 3, {"strides": [2, 2]}, ["ConvTranspose"]),
        (64, 3, 2, {"group": 2}, ["ConvTranspose"]),
    ],
)
def test_which_become_products(
    channels: int, outputs: int, side: int, attributes: dict[str, Any], expected: list[str]
) -> None:
    x = Parameter(f32, [2, channels, 3, 4], "x")
    given = {"strides": [side, side], **attributes}
    made = ops.ConvTranspose(x, constant(channels, outputs, side, side), **given)
    assert transformed(Model([made], [x])) == expected


@pytest.mark.parametrize(
    ("weights", "attributes"),
    [
        ((6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
        ((6, 2, 3, 2), {"group": 3, "pads": [0, 1, 2, 0]}),
        ((6, 5, 3, 3), {"dilations": [2, 1], "pads": [1, 0, 4, 2]}),
        ((6, 4, 3), {"group": 2, "pads": [2, 1]}),
        ((6, 2, 2, 3, 1), {}),
        ((6, 3, 3, 3), {"auto_pad": "VALID"}),
    ],
)
def test_a_stride_of_1_is_a_mirrored_convolution(weights: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x = Parameter(f32, [2, 6, 5, 7, 4][: len(weights)], "x")
    assert transformed(Model([ops.ConvTranspose(x, constant(*weights), **attributes)], [x])) == ["FusedConv"]


@pytest.mark.parametrize(
    "attributes", [{"pads": [3, 0, 0, 0]}, {"auto_pad": "SAME_UPPER"}, {"output_shape": [5, 7]}, {"strides": [1, 2]}]
)
def test_other_windows_stay(attributes: dict[str, Any]) -> None:
    x = Parameter(f32, [1, 6, 5, 7], "x")
    assert transformed(Model([ops.ConvTranspose(x, constant(6, 3, 3, 3), **attributes)], [x])) == ["ConvTranspose"]


def test_bias_and_activation_are_those_of_the_product() -> None:
    x = Parameter(f32, ["N", 48, "H", "W"], "x")
    attributes = {"strides": [2, 2], "activation": Activation("Relu"), "transposed": True}
    made = FusedConv(x, constant(48, 3, 2, 2), constant(3), **attributes)
    assert transformed(Model([made], [x])) == DECOMPOSED


def test_a_residual_and_weights_of_the_user_stay() -> None:
    x, y = Parameter(f32, [1, 48, 3, 3], "x"), Parameter(f32, [1, 3, 6, 6], "y")
    made = FusedConv(x, constant(48, 3, 2, 2), None, y, strides=[2, 2], transposed=True)
    assert transformed(Model([made], [x, y])) == ["FusedConv"]
    w = Parameter(f32, [48, 3, 2, 2], "w")
    assert transformed(Model([ops.ConvTranspose(x, w, strides=[2, 2])], [x, w])) == ["ConvTranspose"]


def test_the_device_computes_them() -> None:
    """Against the operator's evaluation; a sum of 48 products of about 1 is rounded 48 times at most."""
    x = Parameter(f32, [2, 48, 5, 7], "x")
    made = ops.Relu(ops.Add(ops.ConvTranspose(x, constant(48, 3, 2, 2), strides=[2, 2]), constant(1, 3, 1, 1)))
    model, values = Model([made], [x]), constant(2, 48, 5, 7).data
    network = Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    steps = [step.kernel for plan in network.native_plans() for step in plan.steps]  # type: ignore[attr-defined]
    assert "conv_transpose_f32" not in steps
    (got,), (expected,) = (
        network({"x": values}).values(),
        Core().compile_model(model, "TEMPLATE")({"x": values}).values(),
    )
    np.testing.assert_allclose(got, expected, atol=48 * 6e-8 * np.abs(expected).max())
