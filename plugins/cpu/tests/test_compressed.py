"""Products with weights of few bits. If a test fails, a language model is computed wrongly, or takes eight times its
memory."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnxruntime
import pytest
from engine_cpu.transform import prepare_model
from engine_cpu.weights import WeightStore
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ops
from engine.errors import InputError
from engine.ir import Constant, ElementType, Model, Parameter, f32, i8, i64, u8
from engine.ir.element_type import i2, i4, u2, u4
from engine.onnx.annotations import ACCURACY_LEVEL
from engine.ops import evaluate_model
from engine.plugin_api import SupportLevel

Array = np.ndarray[Any, np.dtype[Any]]


def network(
    k: int,
    n: int,
    block: int,
    *,
    type: ElementType = i4,
    zero_points: str = "none",
    rows: list[Any] | None = None,
    half: bool = True,
    bias: bool = False,
) -> Model:
    """x of [rows..., k] times a matrix of `type` in blocks; zero_points: none, one for all, or random."""
    rng = np.random.default_rng(k + n)
    low = -(1 << (type.bits - 1)) if type.is_signed else 0
    codes = rng.integers(low, low + (1 << type.bits), (k, n))
    blocks = -(-k // block)
    scale = rng.uniform(0.01, 0.1, (blocks, n)).astype(np.float16 if half else np.float32).astype(np.float32)
    zeros = {"none": None, "one": np.full((blocks, n), low + 1), "random": rng.integers(low, low + 3, (blocks, n))}
    found = zeros[zero_points]
    zero_point = None if found is None else Constant(found.astype(type.numpy))
    x = Parameter(f32, [*(["M"] if rows is None else rows), k], "x")
    matrix = ops.DequantizeLinear(
        Constant(codes.astype(type.numpy)), Constant(scale), zero_point, axis=0, block_size=block
    )
    y = ops.MatMul(x, matrix)
    if bias:
        y = ops.Add(y, Constant(rng.standard_normal(n).astype(np.float32)))
    return Model([y], [x])


def rows_of(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def check(model: Model, x: Array, tolerance: float = 2e-6) -> None:
    network = Core().compile_model(model, "CPU")
    (actual,) = network.create_infer_request().infer({"x": x}).values()
    (expected,) = evaluate_model(model, [x])
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * (1 + np.abs(expected).max()) * np.sqrt(x.shape[-1])


@pytest.mark.parametrize("type", [i2, u2, i4, u4, i8, u8], ids=str)
@pytest.mark.parametrize("zero_points", ["none", "one", "random"])
def test_all_types(type: ElementType, zero_points: str) -> None:
    check(network(96, 45, 32, type=type, zero_points=zero_points, half=type.bits != 8), rows_of(3, 96))


@pytest.mark.parametrize("block", [16, 128, 1000])
@pytest.mark.parametrize("half", [True, False])
def test_blocks_and_stored_scales(block: int, half: bool) -> None:
    check(network(300, 70, block, half=half, bias=True), rows_of(2, 300))


@pytest.mark.parametrize("rows", [1, 5, 40])  # of few and of many rows, by different kernels
@pytest.mark.parametrize("type", [i4, i8], ids=str)
@pytest.mark.parametrize("activation", [None, "Relu", "Gelu", "Sigmoid", "Mish"])
def test_bias_residual_and_activation(activation: str | None, type: ElementType, rows: int) -> None:
    """They are part of the product, as in f32."""
    model = network(96, 45, 32, type=type, bias=True, rows=["M"])
    (x,), residual = model.parameters, Parameter(f32, ["M", 45], "residual")
    y = ops.Add(residual, model.results[0].input_value(0))
    model = Model([y if activation is None else ops.create(activation, [y])], [x, residual])
    operators = [node.op_type for node in prepare_model(model).graph.ordered_nodes()]
    assert not {"Add", activation} & set(operators)
    given = [rows_of(rows, 96), rows_of(rows, 45)]
    (actual,) = Core().compile_model(model, "CPU")(given).values()
    (expected,) = evaluate_model(model, given)
    assert np.allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_any_number_of_rows_of_one_network() -> None:
    model = network(256, 64, 64, rows=["B", "M"])
    request = Core().compile_model(model, "CPU").create_infer_request()
    for shape in [(1, 1), (2, 3), (1, 40), (0, 5), (3, 100)]:
        x = rows_of(*shape, 256)
        (actual,) = request.infer({"x": x}).values()
        (expected,) = evaluate_model(model, [x])
        assert actual.shape == expected.shape
        assert np.allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_vector() -> None:
    check(network(64, 33, 32, rows=[]), rows_of(64))


def test_no_node_runs_in_f32() -> None:
    answer = Core().query_model(network(64, 33, 32, zero_points="random"), "CPU")
    assert {support.level for support in answer.nodes.values()} == {SupportLevel.NATIVE}


def test_nan_and_infinity_stay_in_their_rows() -> None:
    model = network(128, 40, 32, rows=[3])
    x = rows_of(3, 128)
    x[0, 5], x[2, 100] = np.nan, np.inf
    (actual,) = Core().compile_model(model, "CPU").create_infer_request().infer({"x": x}).values()
    with np.errstate(invalid="ignore"):
        (expected,) = evaluate_model(model, [x])
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    assert np.allclose(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rows", [[1], ["M"]], ids=["static", "dynamic"])
def test_a_blob_has_the_weights_in_4_bits_and_is_not_packed_again(
    rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(1024, 512, 128, rows=rows), rows_of(1, 1024)
    compiled = Core().compile_model(model, "CPU")
    (expected,) = compiled.create_infer_request().infer({"x": x}).values()
    blob = io.BytesIO()
    compiled.export_model(blob)
    in_f32 = 4 * 1024 * 512
    assert len(blob.getvalue()) < in_f32 / 7

    def refuse(*given: Any) -> Array:
        raise AssertionError("packed again")

    monkeypatch.setattr(WeightStore, "_made", refuse)
    blob.seek(0)
    imported = Core().import_model(blob, "CPU")
    (actual,) = imported.create_infer_request().infer({"x": x}).values()
    assert np.array_equal(actual, expected)
    again = io.BytesIO()
    imported.export_model(again)
    assert len(again.getvalue()) <= len(blob.getvalue()) + 64  # names that were made up have other numbers


def test_weights_that_another_node_reads_are_kept() -> None:
    model = network(256, 64, 32, rows=["M"])
    matrix = next(node for node in model.ordered_nodes() if node.op_type == "DequantizeLinear")
    (x,) = model.parameters
    shifted = ops.Add(matrix, ops.ReduceSum(x, keepdims=0))
    model = Model([model.results[0].input_value(0), shifted], [x])
    request = Core().compile_model(model, "CPU").create_infer_request()
    for count in (1, 3):
        given = rows_of(count, 256)
        actual = list(request.infer({"x": given}).values())
        for value, expected in zip(actual, evaluate_model(model, [given]), strict=True):
            assert np.allclose(value, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("group_size", "least", "most"), [(0, 0, 1e-6), (16, 0, 1e-6), (32, 1e-5, 1e-2)])
def test_the_user_may_permit_activations_of_8_bits(group_size: int, least: float, most: float) -> None:
    model, x = network(1024, 64, 32, rows=["M"]), rows_of(2, 1024)
    compiled = Core().compile_model(model, "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group_size})
    blob = io.BytesIO()
    compiled.export_model(blob)
    blob.seek(0)
    (expected,) = evaluate_model(model, [x])
    for network_ in (compiled, Core().import_model(blob, "CPU")):
        (actual,) = network_.create_infer_request().infer({"x": x}).values()
        assert least <= np.abs(actual - expected).max() / np.abs(expected).max() <= most


def test_the_model_may_permit_activations_of_8_bits() -> None:
    model, x = network(1024, 64, 32, rows=[2]), rows_of(2, 1024)
    node = model.ordered_nodes()[-2]
    assert node.op_type == "MatMul"
    node.rt_info[ACCURACY_LEVEL] = 4
    (actual,) = Core().compile_model(model, "CPU").create_infer_request().infer({"x": x}).values()
    (expected,) = evaluate_model(model, [x])
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert 1e-5 < error < 1e-2


@pytest.mark.parametrize("type", [i2, i4, u4, i8], ids=str)
@pytest.mark.parametrize("zero_points", ["none", "one", "random"])
@pytest.mark.parametrize("half", [True, False])
def test_rows_of_a_table(type: ElementType, zero_points: str, half: bool) -> None:
    model, _ = table(9, 45, 16, type, zero_points, half=half)
    request = Core().compile_model(model, "CPU").create_infer_request()
    for given in (np.array([3, -1, 0]), np.array([], np.int64), np.arange(9)):
        (actual,) = request.infer({"indices": given}).values()
        (expected,) = evaluate_model(model, [given])
        assert np.array_equal(actual, expected)
    with pytest.raises(InputError, match="Gather"):
        request.infer({"indices": np.array([9])})


def test_a_table_stays_in_4_bits() -> None:
    model, in_f32 = table(1000, 256, 32, i4, "none", half=True)
    compiled = Core().compile_model(model, "CPU")
    (expected,) = compiled.create_infer_request().infer({"indices": np.arange(3)}).values()
    blob = io.BytesIO()
    compiled.export_model(blob)
    assert len(blob.getvalue()) < in_f32 / 6
    blob.seek(0)
    (actual,) = Core().import_model(blob, "CPU").create_infer_request().infer({"indices": np.arange(3)}).values()
    assert np.array_equal(actual, expected)


def table(rows: int, columns: int, block: int, type: ElementType, zero_points: str, *, half: bool) -> tuple[Model, int]:
    """A look-up, and the bytes of its table in f32."""
    source = network(columns, rows, block, type=type, zero_points=zero_points, half=half)
    matrix = next(node for node in source.ordered_nodes() if node.op_type == "DequantizeLinear")
    constants = [value.node for value in matrix.input_values if value is not None]
    turned = [Constant(np.ascontiguousarray(each.data.T)) for each in constants if isinstance(each, Constant)]
    indices = Parameter(i64, ["N"], "indices")
    found = ops.Gather(ops.DequantizeLinear(*turned, axis=1, block_size=block), indices)
    return Model([found], [indices]), 4 * rows * columns


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zero_points", [False, True])
def test_the_answer_is_that_of_onnxruntime(bits: int, has_zero_points: bool) -> None:
    rng, k, n, block = np.random.default_rng(5), 320, 70, 32
    row = k // block * bits // 8
    arrays = {
        "w": rng.integers(0, 256, (n, k // block, block * bits // 8), np.uint8),
        "scales": rng.uniform(0.01, 0.02, n * (k // block)).astype(np.float32),
        "zero_points": rng.integers(0, 256, n * row, np.uint8),
    }
    names = list(arrays) if has_zero_points else ["w", "scales"]
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        [numpy_helper.from_array(arrays[name], name) for name in names],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    request = Core().compile_model(model, "CPU").create_infer_request()
    for rows in (1, 5, 40):
        x = rows_of(rows, k)
        (actual,) = request.infer({"x": x}).values()
        assert np.allclose(actual, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("size", [1e36, 1e-25])
def test_results_within_the_range_do_not_overflow(rows: int, size: float) -> None:
    """Sums of codes times activations of 1e36 are infinite, though the scales of the weights make them small again."""
    model = network(96, 45, 32, type=i8)
    x = rows_of(rows, 96) * np.float32(size)
    (actual,) = Core().compile_model(model, "CPU")({"x": x}).values()
    (expected,) = evaluate_model(model, [(x / np.float32(size)).astype(np.float32)])
    expected = expected.astype(np.float64) * float(np.float32(size))
    assert np.abs(actual - expected).max() <= 1e-4 * size


def test_a_row_with_an_outlier_changes_no_other_row() -> None:
    """Activations that are rounded to 8 bits share a scale within their own row only."""
    model, x = network(96, 45, 32), rows_of(40, 96)
    for group in (0, 32):
        compiled = Core().compile_model(model, "CPU", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group})
        (usual,) = compiled({"x": x}).values()
        for value in (1e6, np.inf, np.nan):
            changed = x.copy()
            changed[7, 3] = value
            (found,) = compiled({"x": changed}).values()
            others = np.arange(40) != 7
            assert np.array_equal(found[others], usual[others])
            assert np.isfinite(found[7]).all() == np.isfinite(value)
