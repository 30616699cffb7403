"""Constants around convolutions go into their weights. If it fails, convolutional networks compute something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, f32, u8
from engine.passes.common.conv_batch_norm_fusion import ConvBatchNormFusion
from engine.passes.common.conv_bias_fusion import ConvBiasFusion, ConvMultiplyFusion
from engine.passes.common.decompositions import BatchNormalizationDecomposition, SwishDecomposition
from engine.passes.common.gemm_fusion import GemmFusion
from engine.passes.common.global_pool_fusion import GlobalPoolFusion
from engine.passes.common.pad_conv_fusion import PadConvFusion

Apply = Callable[..., Counter[str]]
RNG = np.random.default_rng(5)
N, C, M, SIZE = 2, 4, 6, 7


def array(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def convolution(kind: str, group: int, bias: bool) -> tuple[Parameter, Node]:
    x = Parameter(f32, [N, C, SIZE, SIZE], "x")
    shape = (M, C // group, 3, 3) if kind == "Conv" else (C, M // group, 3, 3)
    inputs = [x, array(*shape), array(M)] if bias else [x, array(*shape)]
    return x, ops.create(kind, inputs, {"group": group, "pads": (1, 0, 2, 1), "strides": (2, 1)})


def normalization(x: Node, channels: int) -> Node:
    variance = Constant(RNG.uniform(0.5, 2.0, channels).astype(np.float32))
    return ops.BatchNormalization(x, array(channels), array(channels), array(channels), variance, epsilon=1e-3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_batch_normalization_goes_into_the_weights(kind: str, group: int, bias: bool, apply: Apply) -> None:
    x, conv = convolution(kind, group, bias)
    model = Model([normalization(conv, M)], [x])
    assert apply(model, ConvBatchNormFusion) == {kind: 1}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_large_weights_are_computed_when_they_are_read(kind: str, dtype: str) -> None:
    """A model whose weights are all changed by passes would be in memory twice while it is compiled."""
    old = RNG.standard_normal((64, 64, 5, 5)).astype(dtype)
    factor = RNG.standard_normal((64, 1, 1)).astype(dtype)
    x = Parameter(ElementType.from_numpy(old.dtype), [1, 64, 8, 8], "x")
    model = Model([ops.Mul(ops.create(kind, [x, Constant(old)]), Constant(factor))], [x])
    ConvMultiplyFusion().run_on_model(model)
    weights = next(node for node in model.ordered_nodes() if isinstance(node, Constant))
    assert not weights.is_loaded
    spread = factor.astype(np.float64).reshape((64, 1, 1, 1) if kind == "Conv" else (1, 64, 1, 1))
    np.testing.assert_array_equal(weights.data, (old.astype(np.float64) * spread).astype(dtype))


def test_a_convolution_that_is_read_elsewhere_keeps_its_weights(apply: Apply) -> None:
    x, conv = convolution("Conv", 1, False)
    model = Model([normalization(conv, M), ops.Relu(conv)], [x])
    assert apply(model, ConvBatchNormFusion, modified=False)["BatchNormalization"] == 1


def test_parameters_that_are_inputs_stay(apply: Apply) -> None:
    x, conv = convolution("Conv", 1, False)
    scale = Parameter(f32, [M], "scale")
    rest = [Constant(np.ones(M, "f")) for _ in range(3)]
    model = Model([ops.BatchNormalization(conv, scale, *rest)], [x, scale])
    assert apply(model, ConvBatchNormFusion, modified=False)["BatchNormalization"] == 1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(M, 1, 1), (1, M, 1, 1), ()])
def test_sums_and_products_per_channel_go_into_the_parameters(
    shape: tuple[int, ...], kind: str, bias: bool, apply: Apply
) -> None:
    x, conv = convolution(kind, 2, bias)
    scaled = ops.Mul(array(*shape), conv)
    model = Model([ops.Add(scaled, array(*shape))], [x])
    assert apply(model, ConvMultiplyFusion, ConvBiasFusion) == {kind: 1}


@pytest.mark.parametrize("shape", [(M, 1, 5), (N, 1, 1, 1), (1, 1, M, 1, 1)])
def test_other_constants_stay(shape: tuple[int, ...], apply: Apply) -> None:
    x = Parameter(f32, [N, C, 5, 5], "x")
    conv = ops.Conv(x, array(M, C, 1, 1))
    model = Model([ops.Add(conv, array(*shape))], [x])
    assert apply(model, ConvBiasFusion, modified=False)["Add"] == 1


def padded(pads: list[int], *, channels: int = C, **more: Any) -> Model:
    x = Parameter(f32, [N, channels, SIZE, SIZE], "x")
    own = {"auto_pad": more.pop("auto_pad")} if "auto_pad" in more else {"pads": [1, 1, 0, 0]}
    pad = ops.Pad(x, Constant(np.array(pads, np.int64)), *more.pop("inputs", ()), **more)
    return Model([ops.Conv(pad, array(M, C, 3, 3), **own)], [x])


def test_zero_padding_goes_into_the_convolution(apply: Apply) -> None:
    model = padded([0, 0, 1, 2, 0, 0, 3, 0])
    assert apply(model, PadConvFusion) == {"Conv": 1}
    (conv,) = (node for node in model.ordered_nodes() if node.op_type == "Conv")
    assert conv.attributes["pads"] == (2, 3, 3, 0)


@pytest.mark.parametrize(
    "model",
    [
        lambda: padded([0, 0, -1, 0, 0, 0, 0, 0]),
        lambda: padded([0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"),
        lambda: padded([0, 0, 1, 1, 0, 0, 1, 1], inputs=[Constant(1.0)]),
        lambda: padded([1, 0, 1, 1, 0, 0, 1, 1]),
        lambda: padded([0, 0, 1, 1, 1, 0, 1, 1]),
        lambda: padded([0, 1, 1, 1, 0, 0, 1, 1], channels=C - 1),
        lambda: padded([0, 0, 1, 1, 0, 1, 1, 1], channels=C - 1),
        lambda: padded([1, 1], inputs=[None, Constant(np.array([2], np.int64))]),
        lambda: padded([0, 0, 1, 1, 0, 0, 1, 1], auto_pad="SAME_UPPER"),
    ],
    ids=[
        "negative",
        "reflected",
        "of-ones",
        "batch-before",
        "batch-after",
        "channel-before",
        "channel-after",
        "one-axis",
        "automatic",
    ],
)
def test_other_padding_stays(model: Callable[[], Model], apply: Apply) -> None:
    assert apply(model(), PadConvFusion, modified=False)["Pad"] == 1


@pytest.mark.parametrize("bias", [(5,), (1, 5), (3, 5), (3, 1), ()])
def test_products_of_matrices_take_their_bias(bias: tuple[int, ...], apply: Apply) -> None:
    x = Parameter(f32, [3, 4], "x")
    model = Model([ops.Add(array(*bias), ops.MatMul(x, array(4, 5)))], [x])
    assert apply(model, GemmFusion) == {"Gemm": 1}


@pytest.mark.parametrize("bias", [(2, 3, 5), (1, 3, 5)])
def test_a_bias_that_widens_the_product_stays(bias: tuple[int, ...], apply: Apply) -> None:
    x = Parameter(f32, [3, 4], "x")
    model = Model([ops.Add(ops.MatMul(x, array(4, 5)), array(*bias))], [x])
    assert apply(model, GemmFusion, modified=False)["Gemm"] == 0


def test_decompositions_compute_the_same(apply: Apply) -> None:
    x = Parameter(f32, [N, C, SIZE], "x")
    assert apply(Model([normalization(x, C)], [x]), BatchNormalizationDecomposition) == {"Mul": 1, "Add": 1}
    assert apply(Model([ops.Swish(x, alpha=1.7)], [x]), SwishDecomposition) == {"Mul": 2, "Sigmoid": 1}
    assert apply(Model([ops.Swish(x)], [x]), SwishDecomposition) == {"Mul": 1, "Sigmoid": 1}


@pytest.mark.parametrize(
    ("kind", "attributes", "is_global"),
    [
        ("AveragePool", {"kernel_shape": [7, 7]}, True),
        ("MaxPool", {"kernel_shape": [7, 7], "auto_pad": "VALID"}, True),
        ("AveragePool", {"kernel_shape": [9, 12], "strides": [9, 12], "ceil_mode": 1, "count_include_pad": 1}, True),
        ("AveragePool", {"kernel_shape": [7, 6]}, False),
        ("AveragePool", {"kernel_shape": [9, 9], "pads": [1, 1, 1, 1], "count_include_pad": 1}, False),
        ("AveragePool", {"kernel_shape": [4, 4], "dilations": [2, 2]}, False),
        ("MaxPool", {"kernel_shape": [7, 7], "auto_pad": "SAME_UPPER", "strides": [7, 7]}, False),
    ],
)
def test_pooling_over_everything_is_global(
    kind: str, attributes: dict[str, Any], is_global: bool, apply: Apply
) -> None:
    x = Parameter(f32, ["N", C, SIZE, SIZE], "x")
    operators = apply(Model([ops.create(kind, [x], attributes)], [x]), GlobalPoolFusion, modified=is_global)
    assert operators == {f"Global{kind}" if is_global else kind: 1}


def test_pooling_of_integers_over_everything_stays(apply: Apply) -> None:
    """GlobalMaxPool has no integers, and quantized maps are pooled as integers."""
    x = Parameter(u8, [N, C, SIZE, SIZE], "x")
    model = Model([ops.MaxPool(x, kernel_shape=[SIZE, SIZE])], [x])
    assert apply(model, GlobalPoolFusion, modified=False) == {"MaxPool": 1}
