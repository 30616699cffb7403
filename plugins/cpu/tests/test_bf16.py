"""Networks compiled with INFERENCE_PRECISION_HINT=bf16, against onnxruntime in f32."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from engine_cpu import network as network_module
from engine_cpu import precision as precision_module
from engine_cpu.layout import Layout
from engine_cpu.passes.weight_rounding import _rounded
from engine_cpu.precision import why_not_bf16
from engine_cpu.reorder import reorder_attributes, reorder_kernel, reordered_array
from onnx import helper, numpy_helper

from engine.core import Core
from engine.errors import UnsupportedError
from engine.native import (
    PlanBuilder,
    ProductRates,
    cpu_features,
    default_isa,
    features,
    isas_within,
    pack,
    product_rates,
)
from engine.testing.networks import seeded_network
from engine.testing.values import values as random_values

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, np.dtype[Any]]
Nodes = Sequence[onnx.NodeProto]
HALF_UNIT = 2.0**-9
"""The share of a value by which rounding to bf16 may change it."""


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also run the slower kernels of CPUs without bf16."""
    monkeypatch.setattr(network_module, "precision_of", lambda config, isa, **_: config["INFERENCE_PRECISION_HINT"])


def named(name: str, *shape: int) -> Array:
    return random_values(*shape, seed=name, is_uniform=True)


def rounded(array: Array) -> Array:
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def model_of(nodes: Nodes, x: Array, constants: Mapping[str, Array]) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [given], [out], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run_cpu(model: onnx.ModelProto, x: Array, precision: str = "bf16") -> Array:
    compiled = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False, "INFERENCE_PRECISION_HINT": precision})
    return np.asarray(compiled({"x": x})["y"])


def run_ort(model: onnx.ModelProto, x: Array) -> Array:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def check_one_product(nodes: Nodes, x: Array, constants: Mapping[str, Array]) -> None:
    """Products of bf16 values are exact, so that only the result is rounded; other operands are rounded too."""
    exact_x, exact = rounded(x), {name: rounded(array) for name, array in constants.items()}
    model = model_of(nodes, exact_x, exact)
    actual, expected = run_cpu(model, exact_x), run_ort(model, exact_x)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=2 * HALF_UNIT, atol=1e-4)
    inexact = model_of(nodes, x, constants)
    assert np.abs(run_cpu(inexact, x) - run_ort(inexact, x)).max() > 1e-4, "computed in f32"


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "few channels": ((1, 3, 17, 21), (24, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "few channels dilated": ((1, 3, 17, 21), (24, 3, 3, 3), {"dilations": [2, 2]}),
    "patches": ((1, 3, 32, 32), (40, 3, 8, 8), {"strides": [8, 8]}),
    "pointwise": ((2, 48, 9, 7), (40, 48, 1, 1), {}),
    "odd channels": ((1, 17, 9, 7), (33, 17, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 32, 15, 15), (32, 32, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "asymmetric": ((1, 20, 11, 13), (16, 20, 5, 3), {"pads": [2, 1, 0, 2]}),
    "groups": ((1, 32, 9, 9), (64, 16, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "one dimension": ((2, 24, 30), (16, 24, 3), {"pads": [1, 1]}),
    "depthwise": ((1, 20, 12, 12), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    "depthwise strided": ((1, 32, 12, 13), (32, 1, 5, 5), {"group": 32, "strides": [2, 2]}),
}


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: str) -> None:
    x_shape, w_shape, attributes = CONVOLUTIONS[case]
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    check_one_product([node], named("x", *x_shape), {"w": named("w", *w_shape), "b": named("b", w_shape[0])})


@pytest.mark.usefixtures("everywhere")
def test_winograd_is_as_close_as_its_transforms_allow() -> None:
    x, w = rounded(named("x", 1, 64, 28, 28)), named("w", 64, 64, 3, 3)
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], x, {"w": w})
    # Weights stay f32 there; where the direct kernel is chosen they are rounded, too.
    actual, expected = run_cpu(model, x), run_ort(model, x)
    np.testing.assert_allclose(actual, expected, rtol=2 * HALF_UNIT, atol=HALF_UNIT * 24 * 3)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("x_shape", "w_shape"), [((5, 33), (33, 20)), ((2, 7, 64), (64, 70)), ((1, 40), (40, 3)), ((3, 4, 5, 32), (32, 48))]
)
def test_product(x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    check_one_product([node], named("x", *x_shape), {"w": named("w", *w_shape)})


@pytest.mark.usefixtures("everywhere")
def test_product_with_bias_and_activation() -> None:
    x, w, b = named("x", 9, 40), named("w", 24, 40), named("b", 24)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"], transB=1), helper.make_node("Relu", ["g"], ["y"])]
    check_one_product(nodes, x, {"w": w, "b": b})


def residual_network() -> tuple[onnx.ModelProto, Array]:
    """Every kind of node that keeps maps in bf16, and some that do not."""
    node, x = helper.make_node, named("image", 2, 3, 33, 35)
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Mul", ["c1", "s1"], ["m1"]),
        node("Conv", ["m1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=24),
        node("GlobalAveragePool", ["c2"], ["g2"]),
        node("Conv", ["g2", "w3", "b3"], ["c3"]),
        node("Sigmoid", ["c3"], ["s3"]),
        node("Mul", ["c2", "s3"], ["m3"]),
        node("Add", ["m3", "p0"], ["a3"]),
        node("Conv", ["a3", "w4"], ["c4"]),
        node("Add", ["c4", "p0"], ["a4"]),
        node("AveragePool", ["a4"], ["p4"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["p4", "w5"], ["c5"], strides=[2, 2]),
        node("Flatten", ["c5"], ["f5"]),
        node("Gemm", ["f5", "w6"], ["y"]),
    ]
    flat = 20 * 8 * 8
    constants = {
        "w0": named("w0", 24, 3, 3, 3) / 3, "b0": named("b0", 24), "w1": named("w1", 24, 24, 3, 3) / 8,
        "w2": named("w2", 24, 1, 3, 3) / 2, "w3": named("w3", 24, 24, 1, 1) / 3, "b3": named("b3", 24),
        "w4": named("w4", 24, 24, 1, 1) / 3, "w5": named("w5", 24, 20, 2, 2) / 3,
        "w6": named("w6", flat, 10) / np.float32(flat**0.5),
    }  # fmt: skip
    return model_of(nodes, x, constants), x


@pytest.mark.usefixtures("everywhere")
def test_network() -> None:
    model, x = residual_network()
    actual, expected = run_cpu(model, x), run_ort(model, x)
    # Eight roundings of maps and seven of weights, most of them averaged out by the sums that follow.
    assert np.abs(actual - expected).max() < 15 * HALF_UNIT * np.abs(expected).max()
    assert np.abs(actual - expected).max() > 1e-5, "computed in f32"
    np.testing.assert_allclose(run_cpu(model, x, "f32"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("everywhere")
def test_a_skip_connection_around_a_transposed_convolution() -> None:
    node, x = helper.make_node, named("x", 1, 32, 9, 9)
    doubled = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}
    nodes = [
        node("ConvTranspose", ["x", "up"], ["large"], **doubled),
        node("Conv", ["large", "same"], ["skip"], pads=[1, 1, 1, 1]),
        node("Relu", ["skip"], ["left"]),
        node("ConvTranspose", ["x", "other"], ["right"], **doubled),
        node("Add", ["right", "left"], ["sum"]),
        node("Relu", ["sum"], ["result"]),
        node("Conv", ["result", "last"], ["y"]),
    ]
    shapes = {"up": (32, 48, 3, 3), "same": (48, 48, 3, 3), "other": (32, 48, 3, 3), "last": (20, 48, 1, 1)}
    fans = {"up": 72, "same": 432, "other": 72, "last": 48}
    constants = {name: named(name, *shape) / np.float32(fans[name] ** 0.5) for name, shape in shapes.items()}
    model = model_of(nodes, x, constants)
    actual, expected = run_cpu(model, x), run_ort(model, x)
    # Four products and five maps are rounded, most of it averaged out by the sums that follow.
    assert np.abs(actual - expected).max() < 9 * HALF_UNIT * np.abs(expected).max()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("height", [3, 0])
def test_the_mean_of_a_map(height: int) -> None:
    x = named("x", 1, 20, height, 4)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("ReduceMean", ["c", "axes"], ["m"]),
        helper.make_node("Conv", ["m", "w"], ["y"]),
    ]
    constants = {"w": named("w", 20, 20, 1, 1) / np.float32(20**0.5), "axes": np.array([2, 3])}
    actual = run_cpu(model_of(nodes, x, constants), x)
    if height == 0:
        assert np.isnan(actual).all()
    else:
        expected = run_ort(model_of(nodes, x, constants), x)
        # Three maps and two weights are rounded.
        assert np.abs(actual - expected).max() < 5 * HALF_UNIT * np.abs(expected).max()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("shape", [(5, 64), (2, 5, 64)])
def test_a_product_of_a_product(shape: tuple[int, ...]) -> None:
    x, first, second = named("x", *shape), named("w1", 64, 96), named("w2", 96, 40)
    constants = {"w1": first / np.float32(8), "w2": second / np.float32(96**0.5)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    model = model_of(nodes, x, constants)
    actual, expected = run_cpu(model, x), run_ort(model, x)
    # Each product rounds both operands; the sum of the second averages most of it out.
    assert np.abs(actual - expected).max() < 4 * HALF_UNIT * np.abs(expected).max()


NETWORKS = [
    "resnet50", "mobilenet_v2", "efficientnet_b0", "unet", "squeezenet", "densenet121", "bert_base", "gpt2_blocks",
    "vit_b16", "convnext_t",
]  # fmt: skip


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", NETWORKS)
def test_small_networks_stay_close_to_f32(name: str) -> None:
    network = seeded_network(name, small=True)
    exact, approximate = (
        Core().compile_model(network.model, "CPU", {"ALLOW_REFERENCE": False, "INFERENCE_PRECISION_HINT": precision})(
            network.inputs
        )
        for precision in ("f32", "bf16")
    )
    for output, expected in exact.items():
        error = np.asarray(approximate[output], np.float64) - expected
        # Independent roundings of 2^-9 in some tens of layers, each of which passes on the error before it.
        assert np.sqrt(np.mean(error**2)) < 0.05 * np.std(expected), output


@pytest.mark.usefixtures("everywhere")
def test_an_imported_network_computes_the_same() -> None:
    model, x = residual_network()
    compiled = Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    blob = io.BytesIO()
    compiled.export_model(blob)
    blob.seek(0)
    imported = Core().import_model(blob, "CPU")
    np.testing.assert_array_equal(imported({"x": x})["y"], compiled({"x": x})["y"])


def test_a_cpu_without_bf16_says_so_and_computes_in_f32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    isa = [each for each in isas_within(default_isa()) if not features(each) & {"bf16", "amx_bf16"}][-1]
    monkeypatch.setattr("engine_cpu.machine.default_isa", lambda: isa)
    model, x = residual_network()
    with caplog.at_level(logging.WARNING, "engine.cpu"):
        actual = run_cpu(model, x)
    assert "no bf16 instructions" in caplog.text
    np.testing.assert_array_equal(actual, run_cpu(model, x, "f32"))


def test_vector_products_of_bf16_are_used_only_where_they_are_faster() -> None:
    """The same instruction takes twice the time of f32 on one maker's CPUs, and half of it on another's."""
    assert why_not_bf16("avx512bf16", ProductRates(f32=56, bf16=112)) is None
    assert "0.5 times as fast as f32" in (why_not_bf16("avx512bf16", ProductRates(f32=56, bf16=28)) or "")
    assert why_not_bf16("avx512bf16", ProductRates(f32=56, bf16=57)), "no gain for the rounding"
    assert why_not_bf16("avx512", ProductRates(f32=56, bf16=112)) == "has no bf16 instructions"
    assert why_not_bf16("amx", ProductRates(f32=56, bf16=28)) is None, "tiles are faster, whatever vectors are"
    assert why_not_bf16("amx", None) is None


def test_a_slow_bf16_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(precision_module, "has_feature", lambda isa, feature: feature == "bf16")
    monkeypatch.setattr(precision_module, "product_rates", lambda: ProductRates(f32=56, bf16=28))
    model, x = residual_network()
    with caplog.at_level(logging.INFO, "engine.cpu"):
        actual = run_cpu(model, x)
    assert "multiplies bf16 0.5 times as fast as f32: computing in f32" in caplog.text
    np.testing.assert_array_equal(actual, run_cpu(model, x, "f32"))
    assert "may set" not in caplog.text


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose products of bf16 are slow."""
    monkeypatch.setattr(precision_module, "has_feature", lambda isa, feature: feature == "bf16")
    monkeypatch.setattr(precision_module, "product_rates", lambda: ProductRates(f32=56, bf16=28))


def large_product(rows: int | str) -> onnx.ModelProto:
    """Two products with 131,072 weights and more, the first with a bias."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"], transB=1),
    ]
    constants = {"w": named("w", 256, 512) / np.float32(16), "b": named("b", 512), "v": named("v", 300, 512)}
    model = model_of(nodes, np.zeros((1, 256), np.float32), constants)
    dimension = model.graph.input[0].type.tensor_type.shape.dim[0]
    if isinstance(rows, str):
        dimension.dim_param = rows
    else:
        dimension.dim_value = rows
    return model


def with_rounded_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for tensor in changed.graph.initializer:
        if len(tensor.dims) == 2:
            tensor.CopyFrom(numpy_helper.from_array(rounded(numpy_helper.to_array(tensor)), tensor.name))
    return changed


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("rows", ["N", 1, 8])
def test_where_bf16_is_slow_weights_of_few_rows_are_kept_in_it(rows: int | str) -> None:
    """A token reads half the bytes, at the arithmetic of f32."""
    model, x = large_product(rows), named("x", 8 if rows == 8 else 1, 256)
    networks = [
        Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint, "ALLOW_REFERENCE": False})
        for hint in ("f32", "bf16")
    ]
    exact, actual = (np.asarray(network({"x": x})["y"]) for network in networks)
    np.testing.assert_array_equal(actual, run_cpu(with_rounded_weights(model), x, "f32"))
    assert np.abs(actual - exact).max() > 1e-4
    sizes = [network.memory()["weights"] for network in networks]
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.usefixtures("slowly")
def test_where_bf16_is_slow_products_of_many_rows_stay_f32() -> None:
    model, x = large_product(9), named("x", 9, 256)
    np.testing.assert_array_equal(run_cpu(model, x), run_cpu(model, x, "f32"))


@pytest.mark.usefixtures("slowly")
def test_rounded_weights_are_imported_with_the_hint_only() -> None:
    model, x = large_product("N"), named("x", 1, 256)
    compiled = Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    blob = io.BytesIO()
    compiled.export_model(blob)
    blob.seek(0)
    with pytest.raises(UnsupportedError, match="compiled for bf16, but INFERENCE_PRECISION_HINT is f32"):
        Core().import_model(blob, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    blob.seek(0)
    imported = Core().import_model(blob, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    np.testing.assert_array_equal(imported({"x": x})["y"], compiled({"x": x})["y"])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3.4e38, 1e-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0])
def test_weights_round_like_bf16(value: float) -> None:
    data = np.array([[value, 1.0]], np.float32)
    np.testing.assert_array_equal(_rounded(data), data.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_cpu_with_fast_bf16_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(precision_module, "why_not_bf16", lambda isa, rates: None)
    precision_module._advise.cache_clear()
    model, x = residual_network()
    with caplog.at_level(logging.INFO, "engine.cpu"):
        run_cpu(model, x, "f32")
        run_cpu(model, x, "f32")
    assert caplog.text.count("networks that tolerate it may set INFERENCE_PRECISION_HINT to bf16") == 1


def test_rates_are_measured_where_there_is_an_instruction() -> None:
    rates = product_rates()
    assert (rates is not None) == ("bf16" in features(cpu_features().isa))
    assert rates is None or min(rates.f32, rates.bf16) > 0


def product_phases(isa: str, rows: int) -> int:
    """The phases of a product of f32 rows: tiles need one that rounds and copies the rows first."""
    b = PlanBuilder(isa=isa)
    weights = pack("pack_gemm_bf16", [named("w", 64, 96)], {"n": 96, "k": 64}, isa=isa)
    a, c = b.add_input(4 * rows * 64), b.add_output(4 * rows * 96)
    attributes = {"m": rows, "n": 96, "k": 64, "a_f32": 1, "c_f32": 1}
    b.add_step("gemm_bf16", [a, b.add_constant(weights)], [c], attributes)
    return b.build().steps[0].phases


@pytest.mark.parametrize("isa", isas_within(default_isa()))
def test_few_rows_are_multiplied_in_f32_unless_bf16_is_faster(isa: str) -> None:
    """A token waits for its weights: tiles of AMX, and slow vector products of bf16, would hold it up further."""
    rates = product_rates()
    is_fast = "bf16" in features(isa) and rates is not None and rates.bf16 > rates.f32
    is_widened = "amx_bf16" in features(isa) or not is_fast
    assert [product_phases(isa, rows) for rows in (1, 4, 5)] == [1 if is_widened else 2] * 2 + [2]


@pytest.mark.parametrize("shape", [(2, 20, 3, 5), (1, 16, 1, 1), (1, 1, 7, 9)], ids=str)
@pytest.mark.parametrize("layout", [Layout.PLAIN_BF16, Layout.BLOCKED, Layout.BLOCKED_BF16])
@pytest.mark.parametrize("other", list(Layout))
def test_reorders_there_and_back(shape: tuple[int, ...], layout: Layout, other: Layout) -> None:
    array = rounded(named("map", *shape))
    there = reordered_array(array, layout, default_isa())
    if other not in (layout, Layout.PLAIN):
        there = pack(reorder_kernel(layout, other), [there], reorder_attributes(layout, other, shape))
        layout = other
    back = pack(reorder_kernel(layout, Layout.PLAIN), [there], reorder_attributes(layout, Layout.PLAIN, shape))
    np.testing.assert_array_equal(back.view(np.float32).reshape(shape), array)
