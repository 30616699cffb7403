"""Products with matrices of few bits become one operator. If it fails, weights take eight times their memory, or a
device multiplies with the wrong scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import ModelError
from engine.ir import Constant, ElementType, Model, Node, Parameter, f32, i8, u8
from engine.ir.element_type import bf16, f8e8m0, f16, i2, i4, u2, u4
from engine.onnx.annotations import ACCURACY_LEVEL
from engine.ops.internal import CompressedMatMul, CompressedMatMulSpec, as_onnx
from engine.passes import check_equivalence
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.compressed_weights_fusion import CompressedWeightsFusion
from engine.passes.common.gemm_fusion import GemmFusion
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.qdq_propagation import DequantizeSinking
from engine.passes.common.quantization_decomposition import DequantizedConstantFolding
from engine.passes.common.residual_fusion import ResidualFusion

Apply = Callable[..., Counter[str]]
TYPES = (i2, u2, i4, u4, i8, u8)
RNG = np.random.default_rng(0)


def codes(*shape: int, type: ElementType = i4) -> Constant:
    low = -(1 << (type.bits - 1)) if type.is_signed else 0
    return Constant(RNG.integers(low, low + (1 << type.bits), shape).astype(type.numpy))


def scales(*shape: int) -> Constant:
    return Constant(RNG.uniform(0.01, 0.1, shape).astype(np.float32))


def ones(n: int) -> Constant:
    return Constant(RNG.standard_normal(n).astype(np.float32))


def compressed(model: Model) -> Node:
    (node,) = (node for node in model.ordered_nodes() if node.op_type == "CompressedMatMul")
    return node


def check(model: Model, *passes: type, apply: Apply) -> CompressedMatMulSpec:
    before = model.clone()
    operators = apply(model, *passes, CompressedWeightsFusion)
    assert operators == {"CompressedMatMul": 1}
    check_equivalence(before, model)
    return CompressedMatMulSpec.of(compressed(model))


@pytest.mark.parametrize("type", TYPES, ids=str)
@pytest.mark.parametrize("block", [8, 16, 40])
def test_a_product_with_blocks_of_each_type(type: ElementType, block: int, apply: Apply) -> None:
    x = Parameter(f32, [2, "M", 40], "x")
    blocks = -(-40 // block)
    matrix = ops.DequantizeLinear(
        codes(40, 6, type=type), scales(blocks, 6), codes(blocks, 6, type=type), axis=0, block_size=block
    )
    spec = check(Model([ops.MatMul(x, matrix)], [x]), apply=apply)
    assert spec.block_size == block
    assert spec.weights.element_type is type


SCALES: list[tuple[str, tuple[int, ...], dict[str, int]]] = [
    ("tensor", (), {}),
    ("tensor of one element", (1,), {"axis": 1}),
    ("columns", (6,), {"axis": 1}),
    ("columns from the end", (6,), {"axis": -1}),
]


@pytest.mark.parametrize(("shape", "attributes"), [s[1:] for s in SCALES], ids=[s[0] for s in SCALES])
def test_without_blocks_a_column_is_one_block(shape: tuple[int, ...], attributes: Any, apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    matrix = ops.DequantizeLinear(codes(40, 6), scales(*shape), codes(*shape), **attributes)
    spec = check(Model([ops.MatMul(x, matrix)], [x]), apply=apply)
    assert spec.block_size == 40
    assert spec.scale.shape.get_shape() == (1, 6)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=["scalar", "vector", "matrix"])
def test_one_number_may_stand_for_all_blocks(shape: tuple[int, ...], transposed: bool, apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    stored, blocks = ((6, 40), (6, 5)) if transposed else ((40, 6), (5, 6))
    attributes = {"axis": int(transposed), "block_size": 8}
    for operands in ([scales(*shape)], [scales(*blocks), codes(*shape)], [scales(*shape), codes(*shape)]):
        try:
            matrix = ops.create("DequantizeLinear", [codes(*stored), *operands], attributes)
        except ModelError:
            continue  # refused when it is read
        spec = check(Model([ops.Gemm(x, matrix, transB=int(transposed))], [x]), apply=apply)
        assert spec.block_size == (8 if operands[0].shape == blocks else 40)


def test_a_matrix_stored_transposed(apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    matrix = ops.DequantizeLinear(codes(6, 40, type=u4), scales(6, 5), codes(6, 5, type=u4), axis=1, block_size=8)
    spec = check(Model([ops.MatMul(x, ops.Transpose(matrix, perm=[1, 0]))], [x]), DequantizeSinking, apply=apply)
    assert spec.weights.shape.get_shape() == (40, 6)
    spec = check(Model([ops.Gemm(x, matrix, transB=1)], [x]), apply=apply)
    assert spec.scale.shape.get_shape() == (5, 6)


@pytest.mark.parametrize("passes", [(), (GemmFusion,), (MatMulBiasFusion,)], ids=["Add", "Gemm", "FusedMatMul"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_bias_joins_the_product(passes: tuple[type, ...], left: bool, apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    product = ops.MatMul(x, ops.DequantizeLinear(codes(40, 6), scales(5, 6), axis=0, block_size=8))
    total = ops.Add(ones(6), product) if left else ops.Add(product, ones(6))
    spec = check(Model([total], [x]), *passes, apply=apply)
    assert spec.bias is not None


def test_the_accuracy_level_of_a_product_is_kept(apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    product = ops.MatMul(x, ops.DequantizeLinear(codes(40, 6), scales(5, 6), axis=0, block_size=8))
    product.rt_info[ACCURACY_LEVEL] = 4
    assert check(Model([ops.Add(product, ones(6))], [x]), apply=apply).accuracy_level == 4


def dequantized() -> Node:
    return ops.DequantizeLinear(codes(40, 6), scales(5, 6), axis=0, block_size=8)


def quantized(x: Node) -> Node:
    scale, zero_point = Constant(np.float32(0.1)), Constant(3, u8)
    return ops.DequantizeLinear(ops.QuantizeLinear(x, scale, zero_point), scale, zero_point)


def bad_scale(value: float) -> Constant:
    data = np.full((5, 6), 0.1, np.float32)
    data[3, 2] = value
    return Constant(data)


def product_of(x: Node, codes: Constant, scale: Node, **attributes: int) -> Node:
    return ops.MatMul(x, ops.DequantizeLinear(codes, scale, **attributes))


STAYS: list[tuple[str, Callable[[Node], Node]]] = [
    ("blocks of columns", lambda x: product_of(x, codes(40, 6), scales(40, 2), axis=1, block_size=3)),
    ("scales of rows", lambda x: product_of(x, codes(40, 6), scales(40), axis=0)),
    ("16 bits", lambda x: product_of(x, Constant(np.ones((40, 6), np.int16)), scales())),
    ("NaN", lambda x: product_of(x, codes(40, 6), bad_scale(np.nan), axis=0, block_size=8)),
    ("infinity", lambda x: product_of(x, codes(40, 6), bad_scale(np.inf), axis=0, block_size=8)),
    ("several matrices", lambda x: product_of(x, codes(2, 40, 6), scales(2, 5, 6), axis=1, block_size=8)),
    (
        "scales of 8 bits",
        lambda x: product_of(
            x, codes(40, 6), Constant(np.ones((5, 6), f8e8m0.numpy)), axis=0, block_size=8, output_dtype=f32.onnx
        ),
    ),
    ("left operand", lambda x: ops.MatMul(ops.DequantizeLinear(codes(6, 3), scales()), x)),
    ("computed scale", lambda x: product_of(x, codes(40, 6), ops.ReduceMax(x, keepdims=0))),
    ("both quantized", lambda x: product_of(quantized(x), codes(40, 6, type=i8), scales())),
    ("transposed x", lambda x: ops.Gemm(ops.Transpose(x, perm=[1, 0]), dequantized(), transA=1)),
    ("a factor", lambda x: ops.Gemm(x, dequantized(), alpha=2.0)),
]


@pytest.mark.parametrize("make", [s[1] for s in STAYS], ids=[s[0] for s in STAYS])
def test_other_products_stay(make: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    apply(Model([make(x)], [x]), CompressedWeightsFusion, modified=False)


def test_quantized_rows_and_weights_of_4_bits_are_a_product_of_f32(apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    model = Model([ops.MatMul(quantized(x), dequantized())], [x])
    assert apply(model, CompressedWeightsFusion)["CompressedMatMul"] == 1


@pytest.mark.parametrize(
    "other",
    [lambda: ones(1), lambda: Constant(np.ones((3, 1), np.float32)), lambda: Constant(np.ones((3, 6), np.float32))],
    ids=["one", "column", "matrix"],
)
def test_what_is_added_and_is_not_a_bias_stays_outside(other: Callable[[], Constant], apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    model = Model([ops.Add(ops.MatMul(x, dequantized()), other())], [x])
    before = model.clone()
    assert apply(model, CompressedWeightsFusion) == {"CompressedMatMul": 1, "Add": 1}
    check_equivalence(before, model)


def limits(*numbers: float) -> list[Constant]:
    return [Constant(number, f32) for number in numbers]


EPILOGUES: list[tuple[str, Callable[[Node, Node], Node]]] = [
    ("activation", lambda product, other: ops.Relu(product)),
    ("bias and activation", lambda product, other: ops.Gelu(ops.Add(product, ones(6)))),
    ("residual", lambda product, other: ops.Add(other, product)),
    ("all", lambda product, other: ops.Clip(ops.Add(ops.Add(product, ones(6)), other), *limits(-1, 2))),
]


@pytest.mark.parametrize("make", [e[1] for e in EPILOGUES], ids=[e[0] for e in EPILOGUES])
def test_what_follows_is_fused_as_into_a_product_of_f32(make: Callable[[Node, Node], Node], apply: Apply) -> None:
    x, other = Parameter(f32, [3, 40], "x"), Parameter(f32, [3, 6], "other")
    model = Model([make(ops.MatMul(x, dequantized()), other)], [x, other])
    before = model.clone()
    assert apply(model, CompressedWeightsFusion, ResidualFusion, ActivationFusion) == {"CompressedMatMul": 1}
    check_equivalence(before, model)


def test_an_activation_is_last(apply: Apply) -> None:
    x, other = Parameter(f32, [3, 40], "x"), Parameter(f32, [3, 6], "other")
    model = Model([ops.Add(ops.Add(ops.Relu(ops.MatMul(x, dequantized())), other), ones(6))], [x, other])
    passes = CompressedWeightsFusion, ResidualFusion, ActivationFusion
    assert apply(model, *passes) == {"CompressedMatMul": 1, "Add": 2}
    apply(model, *passes, modified=False)


def test_a_device_that_folds_constants_keeps_compressed_weights(apply: Apply) -> None:
    x = Parameter(f32, [3, 40], "x")
    matrix = ops.DequantizeLinear(codes(6, 40), scales(6, 5), axis=1, block_size=8)
    model = Model([ops.MatMul(x, ops.Transpose(matrix))], [x])
    operators = apply(model, DequantizeSinking, DequantizedConstantFolding, CompressedWeightsFusion)
    assert operators == {"CompressedMatMul": 1}


@pytest.mark.parametrize("type", [f16, bf16], ids=str)
def test_scales_of_another_type_are_widened(type: ElementType) -> None:
    x, weights = Parameter(f32, [3, 40], "x"), codes(40, 6)
    scale = Constant(RNG.uniform(0.01, 0.1, (5, 6)).astype(type.numpy))
    node = CompressedMatMul(x, weights, scale, block_size=8)
    wide = Constant(scale.data.astype(np.float32))
    expected = ops.MatMul(x, ops.DequantizeLinear(weights, wide, axis=0, block_size=8))
    check_equivalence(Model([expected], [x]), as_onnx(Model([node], [x])))


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("block", {"block_size": 0}, "block_size is 0; allowed: 1 or more"),
    ("level", {"accuracy_level": 9}, "accuracy_level is 9; allowed: 0..4"),
    ("scale", {"scale": scales(4, 6)}, r"the scale has shape \[4,6\]; expected \[5, 6\]"),
    ("zero point", {"zero_point": codes(5, 7)}, r"the zero point has shape \[5,7\]; expected \[5, 6\]"),
    ("its type", {"zero_point": codes(5, 6, type=u4)}, "the zero point is u4; expected i4"),
    ("bias", {"bias": ones(5)}, r"the bias has shape \[5\]; expected \[6\]"),
    ("residual", {"residual": Parameter(f32, [2, 6], "r")}, r"the residual is f32\[2,6\]"),
    ("rank", {"scale": scales(6)}, "input 2 has rank 1; allowed: 2"),
]


@pytest.mark.parametrize(("given", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_operands_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    operands = {"scale": scales(5, 6), "block_size": 8} | given
    with pytest.raises(ModelError, match=message):
        CompressedMatMul(Parameter(f32, [3, 40], "x"), codes(40, 6), **operands)
