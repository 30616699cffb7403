"""Weights in 4 and 8 bits, without data.

If one fails, a compressed model computes something other than its report says, or other runtimes do not run it.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Core, ops
from engine.errors import PassError
from engine.ir import Constant, ElementType, Model, Node, Parameter, f16, f32, i8, i64, u8
from engine.ir.element_type import bf16, i4, u4
from engine.onnx import model_to_proto, read_model
from engine.ops.evaluator import ModelEvaluator
from engine.passes import CompressedModel, compress_weights
from engine.passes.block_search import BlockCodes, search_blocks
from engine.testing.networks import seeded_network

Array = NDArray[Any]
F32 = np.dtype(np.float32)


def dequantized(found: BlockCodes, block: int) -> Array:
    zero = (
        np.zeros_like(found.scales, np.float64) if found.zero_points is None else found.zero_points.astype(np.float64)
    )
    rows = np.arange(len(found.codes)) // block
    return np.asarray((found.codes.astype(np.float64) - zero[rows]) * found.scales.astype(np.float64)[rows])


def plain_error(matrix: Array, block: int, bits: int, symmetric: bool) -> float:
    """The squared error of rounding with the step whose range just contains each block."""
    total = 0.0
    for start in range(0, len(matrix), block):
        part = matrix[start : start + block].astype(np.float64)
        low, high = np.minimum(part.min(axis=0), 0), np.maximum(part.max(axis=0), 0)
        steps = (1 << bits) - 1
        step = np.maximum(high, -low) / (steps // 2) if symmetric else (high - low) / steps
        step = np.where(step > 0, step, 1)
        zero = 0 if symmetric else np.rint(-low / step)
        codes = np.rint(part / step) + zero
        codes = np.clip(codes, *((-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if symmetric else (0, steps)))
        total += float(np.square((codes - zero) * step - part).sum())
    return total


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 600),
    st.sampled_from([i4, u4, i8, u8]),
    st.sampled_from([2, 16, 128, 1000]),
    st.sampled_from(["normal", "positive", "outliers", "constant", "tiny", "huge", "zero rows"]),
    st.integers(0, 9),
)
def test_the_search_beats_plain_rounding_and_reports_its_error(
    rows: int, columns: int, element_type: ElementType, block: int, kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((rows, columns)).astype(np.float32)
    if kind == "positive":
        matrix = np.abs(matrix) + 3
    elif kind == "outliers":
        matrix[random.random(matrix.shape) < 0.01] *= 30
    elif kind == "constant":
        matrix[:] = random.standard_normal(columns)
    elif kind == "tiny":
        matrix *= np.float32(1e-30)
    elif kind == "huge":
        matrix *= np.float32(1e37)
    elif kind == "zero rows":
        matrix[random.random(rows) < 0.5] = 0
    found = search_blocks(matrix, element_type, block, F32, symmetric=element_type.is_signed)
    assert found.codes.dtype == element_type.numpy
    assert found.scales.shape == (-(-rows // block), columns)
    assert (found.zero_points is None) == element_type.is_signed
    assert np.isfinite(found.scales).all()
    assert element_type is i4 or (found.scales > 0).all()
    difference = dequantized(found, block) - matrix
    actual = float(np.square(difference).sum())
    norm = float(np.square(matrix, dtype=np.float64).sum())
    assert found.squared_error == pytest.approx(actual, rel=1e-3, abs=1e-10 * norm)
    assert found.squared_sum == pytest.approx(norm, rel=1e-5)
    assert found.largest_error == pytest.approx(
        np.abs(difference).max(), rel=1e-3, abs=1e-6 * float(np.abs(matrix).max())
    )
    plain = plain_error(matrix, block, element_type.bits, element_type.is_signed)
    assert actual <= 1.001 * plain + 3e-7 * norm  # scales are rounded to f16


@pytest.mark.parametrize("element_type", [i4, u4, i8, u8], ids=str)
def test_values_that_are_codes_are_exact(element_type: ElementType) -> None:
    random = np.random.default_rng(0)
    low = -(1 << (element_type.bits - 1)) if element_type.is_signed else -3
    codes = random.integers(low, low + (1 << element_type.bits), (64, 5))
    codes[0], codes[1] = low, low + (1 << element_type.bits) - 1
    matrix = (codes * 0.25).astype(np.float32)
    found = search_blocks(matrix, element_type, 64, F32, symmetric=element_type.is_signed)
    assert found.largest_error <= 1e-6 * np.abs(matrix).max()


@pytest.mark.parametrize("scale_type", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_codes_fit_a_scale_that_is_rounded(scale_type: Any) -> None:
    matrix = np.random.default_rng(0).standard_normal((128, 40)).astype(scale_type)
    found = search_blocks(matrix, i4, 32, np.dtype(scale_type), symmetric=True)
    assert found.scales.dtype == scale_type
    actual = np.square(dequantized(found, 32) - matrix.astype(np.float64)).sum()
    assert found.squared_error == pytest.approx(actual, rel=1e-3)
    assert actual <= 1.05 * plain_error(matrix.astype(np.float32), 32, 4, True)


def test_scales_of_4_bits_are_those_of_f16_where_it_has_them() -> None:
    matrix = np.random.default_rng(0).standard_normal((128, 40)).astype(np.float32)
    for factor, is_short in ((1, True), (1e-8, False), (1e9, False)):
        scales = search_blocks(matrix * np.float32(factor), i4, 32, F32, symmetric=True).scales
        with np.errstate(over="ignore"):
            assert (scales.astype(np.float16) == scales).all() == is_short


def test_a_scale_too_small_for_its_type_gives_zeros() -> None:
    found = search_blocks(np.full((16, 3), 1e-9, np.float16), i4, 16, np.dtype(np.float16), symmetric=True)
    assert not found.codes.any()
    assert found.largest_error == 0


# -- models -----------------------------------------------------------------------------------------------


def weights(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Constant:
    return Constant(np.random.default_rng(seed).standard_normal(shape).astype(dtype), friendly_name="w")


def named(node: Node, name: str) -> Node:
    node.friendly_name = name
    return node


def feed_of(model: Model) -> list[Array]:
    random = np.random.default_rng(1)
    feed = []
    for parameter in model.parameters:
        shape = parameter.type.shape.get_shape()  # type: ignore[attr-defined]
        numpy = parameter.type.element_type.numpy  # type: ignore[attr-defined]
        feed.append(random.integers(0, 60, shape) if numpy == np.int64 else random.standard_normal(shape).astype(numpy))
    return feed


def check_runtimes(found: CompressedModel, tolerance: float = 1e-5) -> None:
    """The reference evaluator and onnxruntime compute the same of the model."""
    feed = feed_of(found.model)
    proto = model_to_proto(found.model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    expected = session.run(None, dict(zip(names, feed, strict=True)))
    for model in (found.model, read_model(proto)):
        for got, wanted in zip(ModelEvaluator(model).run(feed), expected, strict=True):
            wide = wanted.astype(np.float64)
            np.testing.assert_allclose(got.astype(np.float64), wide, rtol=0, atol=tolerance * np.abs(wide).max())


def product(rows: int = 100, columns: int = 70, dtype: ElementType = f32) -> Model:
    x = Parameter(dtype, [3, rows], "x")
    return Model([named(ops.MatMul(x, weights(rows, columns, dtype=dtype.numpy)), "layer")], [x])


@pytest.mark.parametrize("group", [0, 16, 33, 100, 128])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_a_product_is_what_other_runtimes_compute(weights: str, symmetric: bool, group: int) -> None:
    found = compress_weights(product(), weights, group=group, symmetric=symmetric)
    check_runtimes(found)
    (layer,) = found.layers
    assert layer.element_type.name == ("i" if symmetric else "u") + weights[-1]
    assert layer.block_size == (group if 0 < group < 100 else 100)
    assert 1e-4 < layer.relative_error < {"int4": 0.2, "int8": 0.02}[weights]


def test_the_report_is_what_was_done() -> None:
    model = product()
    found = compress_weights(model)
    (layer,) = found.layers
    original = np.asarray(model.node("layer").input_value(1).node.data)  # type: ignore[attr-defined]
    made = found.model.node("layer").input_value(1).node
    matrix = ModelEvaluator(Model([ops.Identity(made.output(0))], [])).run([])[0]
    error = matrix - original
    assert layer.relative_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(original), rel=1e-4)
    assert layer.largest_error == pytest.approx(np.abs(error).max(), rel=1e-4)
    assert (layer.nodes, layer.shape) == (("layer",), (100, 70))
    assert (layer.bytes_before, layer.bytes_after) == (28000, 100 * 70 // 2 + 70 * 4)
    assert (found.bytes_before, found.bytes_after) == (28000, layer.bytes_after)
    assert "layer  100x70  i4      100  28.0 kB  3.8 kB" in str(found)
    assert isinstance(model.node("layer").input_value(1).node, Constant), "the model itself is not changed"


def test_codes_stay_packed_until_they_are_read() -> None:
    found = compress_weights(product())
    codes = found.model.node("layer").input_value(1).node.input_value(0).node
    assert isinstance(codes, Constant)
    assert not codes.is_loaded


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_a_model_in_a_narrow_type_keeps_it(dtype: ElementType) -> None:
    found = compress_weights(product(dtype=dtype))
    scale = found.model.node("layer").input_value(1).node.input_value(1)
    assert scale.element_type is dtype
    if dtype is f16:
        check_runtimes(found, 2e-3)


def gemm(transposed: bool, alpha: float = 1.0) -> Model:
    x = Parameter(f32, [3, 100], "x")
    matrix = weights(*((70, 100) if transposed else (100, 70)))
    bias = Constant(np.ones(70, np.float32))
    return Model([named(ops.Gemm(x, matrix, bias, transB=int(transposed), alpha=alpha), "layer")], [x])


@pytest.mark.parametrize("model", [gemm(False), gemm(True), gemm(True, 0.5)], ids=["B", "transposed", "alpha"])
def test_a_gemm_keeps_the_orientation_of_its_matrix(model: Model) -> None:
    found = compress_weights(model, group=32)
    check_runtimes(found)
    assert found.layers[0].shape == (100, 70)


def test_a_matrix_that_is_transposed_before_the_product() -> None:
    x = Parameter(f32, [3, 100], "x")
    model = Model([named(ops.MatMul(x, ops.Transpose(weights(70, 100), perm=[1, 0])), "layer")], [x])
    found = compress_weights(model, group=32)
    check_runtimes(found)
    assert found.layers[0].shape == (100, 70)


def test_a_matrix_that_is_widened_before_the_product() -> None:
    x = Parameter(f32, [3, 100], "x")
    matrix = ops.Cast(ops.Identity(weights(70, 100, dtype=np.float16)), to=f32.onnx)
    model = Model([named(ops.MatMul(x, ops.Transpose(matrix)), "layer")], [x])
    found = compress_weights(model, group=32)
    check_runtimes(found)
    assert found.layers[0].shape == (100, 70)
    feed = {"x": np.ones((3, 100), np.float32)}
    network = Core().compile_model(found.model, "CPU")
    (got,), (expected,) = (each(feed).values() for each in (network, Core().compile_model(found.model, "TEMPLATE")))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_numbers_that_a_cast_rounds_are_no_weights() -> None:
    x = Parameter(f32, [3, 100], "x")
    whole = ops.Cast(ops.Cast(weights(100, 70), to=i64.onnx), to=f32.onnx)
    found = compress_weights(Model([ops.MatMul(x, whole)], [x]))
    assert (found.layers, found.skipped) == ((), ())


def tied() -> Model:
    """A table whose rows are looked up, and with which the result is multiplied, as in language models."""
    ids, table = Parameter(i64, [2, 3], "ids"), weights(80, 96)
    rows = named(ops.Gather(table, ids), "embedding")
    logits = named(ops.MatMul(ops.Tanh(rows), ops.Transpose(table)), "head")
    return Model([logits], [ids])


def test_a_table_that_is_also_multiplied_with() -> None:
    found = compress_weights(tied(), embeddings=True, group=32)
    check_runtimes(found)
    (layer,) = found.layers
    assert layer.nodes == ("embedding", "head")
    assert layer.shape == (96, 80)
    assert found.bytes_after == layer.bytes_after


def test_an_embedding_stays_unless_it_is_asked_for() -> None:
    found = compress_weights(tied(), group=32)
    check_runtimes(found)
    (layer,) = found.layers
    assert layer.nodes == ("head",)
    assert layer.bytes_after > layer.bytes_before, "the table stays, too"


def test_products_in_a_branch() -> None:
    x, condition = Parameter(f32, [3, 100], "x"), Parameter(i64, [], "c")
    inner = [Parameter(f32, [3, 100], "inner") for _ in range(2)]
    bodies = [
        Model([named(ops.MatMul(each, weights(100, 70, seed=seed)), f"layer{seed}")], [], captures=[each])
        for seed, each in enumerate(inner)
    ]
    node = ops.create("If", [ops.Cast(condition, to=9), x, x], {"then_branch": bodies[0], "else_branch": bodies[1]})
    found = compress_weights(Model([node], [x, condition]))
    assert [layer.name for layer in found.layers] == ["layer0", "layer1"]
    check_runtimes(found)


def model_of(matrix: Constant, *, twice: bool = False) -> Model:
    shape = matrix.shape
    x = Parameter(matrix.element_type, [*shape[:-2], 2, shape[-2]], "x")
    results = [named(ops.MatMul(x, matrix), "layer")]
    parameters = [x]
    if twice:
        parameters.append(Parameter(matrix.element_type, [2, shape[-1]], "y"))
        results.append(named(ops.Gemm(parameters[1], matrix, transB=1), "other"))
    return Model(results, parameters)


def with_one(value: float, dtype: ElementType = f32) -> Constant:
    data = np.ones((100, 70), dtype.numpy)
    data[70, 3] = value
    return Constant(data)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (model_of(weights(63, 70)), r"it has shape \[63, 70\]; smaller than 64"),
        (model_of(weights(100, 7)), r"it has shape \[100, 7\]; smaller than 64"),
        (model_of(weights(2, 100, 70)), r"it has shape \[2, 100, 70\]; expected a matrix"),
        (model_of(weights(100, 70, dtype=np.float64)), "it is f64; expected f32, f16, bf16"),
        (model_of(with_one(math.nan)), r"it has elements that are NaN, infinite or larger than 1.7e\+38"),
        (model_of(with_one(-math.inf)), "it has elements that are NaN, infinite or larger than"),
        (model_of(with_one(-3e38)), "it has elements that are NaN, infinite or larger than"),
        (model_of(weights(100, 70), twice=True), "it is read both as it is and transposed"),
    ],
)
def test_what_cannot_be_compressed_stays_with_a_reason(model: Model, reason: str) -> None:
    found = compress_weights(model)
    assert not found.layers
    (layer,) = found.skipped
    assert layer.name == "layer"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(layer.reason)
    assert found.bytes_after == found.bytes_before


@pytest.mark.parametrize(("dtype", "largest"), [(f32, 2.0**127), (f16, 2.0**15), (bf16, 2.0**127)], ids=str)
def test_elements_up_to_half_of_the_range_of_their_type_are_compressed(dtype: ElementType, largest: float) -> None:
    assert compress_weights(model_of(with_one(-largest, dtype))).layers
    assert not compress_weights(model_of(with_one(1.01 * largest, dtype))).layers


def test_scales_that_outweigh_the_codes_are_no_compression() -> None:
    found = compress_weights(product(), "int8", group=2, symmetric=False)
    assert found.layers
    narrow = compress_weights(product(dtype=f16), "int8", group=2, symmetric=False)
    assert "it would take" in narrow.skipped[0].reason


def test_nodes_are_chosen_by_name_or_function() -> None:
    x = Parameter(f32, [3, 64], "x")
    first = named(ops.MatMul(x, weights(64, 64, seed=1)), "block.0/up")
    second = named(ops.MatMul(first, weights(64, 64, seed=2)), "block.0/down")
    model = Model([named(ops.MatMul(second, weights(64, 64, seed=3)), "head")], [x])

    def names(**selection: Any) -> list[str]:
        return [layer.name for layer in compress_weights(model, **selection).layers]

    assert names(exclude="head") == ["block.0/up", "block.0/down"]
    assert names(include="block.*", exclude=["*down"]) == ["block.0/up"]
    assert names(include=lambda node: node.friendly_name == "head") == ["head"]
    skipped = compress_weights(model, include="block.*", exclude=["*down"]).skipped
    assert [(layer.name, layer.reason) for layer in skipped] == [("block.0/down", "excluded"), ("head", "not included")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"weights": "int3"}, "weights is 'int3'; expected 'int4' or 'int8'"),
        ({"weights": 4}, "weights is 4; expected"),
        ({"group": 1}, "group is 1; expected 2 or more"),
        ({"group": -128}, "group is -128; expected 2 or more"),
        ({"group": 12.5}, "group is 12.5; expected 2 or more"),
        ({"group": True}, "group is True; expected 2 or more"),
        ({"exclude": "lm_head"}, "no node that reads a matrix matches 'lm_head' of exclude; these nodes are: layer"),
        ({"include": ["layer", "x*"]}, r"matches 'x\*' of include"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PassError, match=words):
        compress_weights(product(), **arguments)


def test_a_compressed_model_is_not_compressed_again() -> None:
    found = compress_weights(compress_weights(product()).model)
    assert (found.layers, found.skipped) == ((), ())
    assert str(found) == "no MatMul or Gemm of the model has a constant matrix of real numbers"


@pytest.mark.parametrize(("weights", "error"), [("int4", 0.15), ("int8", 0.02)])
def test_a_network_on_devices(weights: str, error: float) -> None:
    network = seeded_network("gpt2_blocks", layers=2, hidden=96, heads=3, tokens=10)
    found = compress_weights(read_model(network.model), weights, group=32)
    assert len(found.layers) == 8
    proto = model_to_proto(found.model)
    expected = onnxruntime.InferenceSession(network.model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, network.inputs
    )[0]
    answers = {
        device: next(iter(Core().compile_model(proto, device)(network.inputs).values()))
        for device in ("TEMPLATE", "CPU")
    }
    norm = np.linalg.norm(expected)
    assert np.linalg.norm(answers["TEMPLATE"] - expected) < error * norm
    assert np.linalg.norm(answers["CPU"] - answers["TEMPLATE"]) < 1e-5 * norm
