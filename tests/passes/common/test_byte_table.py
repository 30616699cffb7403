"""Functions of one 8-bit tensor as tables. A wrong table changes the answers of networks with quantized activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, OutputLike, Parameter, f32, i8, u8
from engine.ops import evaluate_model
from engine.ops.internal import ByteTable, byte_codes
from engine.passes import PassConfig
from engine.passes.common.byte_table_fusion import ByteTableFusion
from engine.testing.passes import check_pass


def quantized(value: OutputLike, scale: float = 0.05, zero: int = 100, kind: ElementType = u8) -> Node:
    return ops.QuantizeLinear(value, Constant(np.float32(scale)), Constant(np.array(zero, kind.numpy)))


def dequantized(value: OutputLike, scale: float = 0.05, zero: int = 100, kind: ElementType = u8) -> Node:
    return ops.DequantizeLinear(value, Constant(np.float32(scale)), Constant(np.array(zero, kind.numpy)))


def kinds_after(model: Model) -> list[str]:
    check_pass(ByteTableFusion, model, config=enabled())
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in ("Parameter", "Result", "Constant")]


def enabled() -> PassConfig:
    config = PassConfig()
    config.enable(ByteTableFusion)
    return config


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
def test_the_operator_looks_up_each_byte(kind: ElementType) -> None:
    x = Parameter(kind, [256], "x")
    table = np.random.default_rng(1).integers(-128, 128, 256).astype(np.int8)
    (result,) = evaluate_model(Model([ByteTable(x, Constant(table))], [x]), [byte_codes(kind)])
    np.testing.assert_array_equal(result, table)


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
def test_an_activation_between_quantizations_is_a_table(kind: ElementType) -> None:
    x = Parameter(kind, [2, 3, 5], "x")
    value = ops.Mul(ops.Gelu(dequantized(x, 0.05, 12, kind)), Constant(np.float32(0.5)))
    assert kinds_after(Model([quantized(value, 0.02, 3, kind)], [x])) == ["ByteTable"]


@pytest.mark.parametrize("make", [ops.Sum, ops.Mean, ops.Mod], ids=["Sum", "Mean", "Mod"])
def test_every_pointwise_operator_may_be_part_of_a_table(make: Callable[..., Node]) -> None:
    x, two = Parameter(u8, [2, 3, 5], "x"), Constant(np.float32(2))
    value = make(dequantized(x), two, fmod=1) if make is ops.Mod else make(dequantized(x), two)
    assert kinds_after(Model([quantized(ops.Where(ops.Less(value, two), value, two))], [x])) == ["ByteTable"]


def test_a_quantized_factor_of_the_same_tensor_is_part_of_the_table() -> None:
    x = Parameter(u8, [2, 3, 5], "x")
    factor = dequantized(quantized(ops.Sigmoid(dequantized(x)), 1 / 256, 0), 1 / 256, 0)
    assert kinds_after(Model([quantized(ops.Mul(dequantized(x), factor))], [x])) == ["ByteTable"]


def test_functions_of_two_tensors_stay() -> None:
    x, y = Parameter(u8, [2, 3, 5], "x"), Parameter(u8, [2, 3, 5], "y")
    model = Model([quantized(ops.Mul(dequantized(x), dequantized(y)))], [x, y])
    check_pass(ByteTableFusion, model, config=enabled(), changes=False)


def test_scales_of_channels_stay() -> None:
    x = Parameter(u8, [2, 3, 5], "x")
    scale, zero = Constant(np.array([0.1, 0.2, 0.3], np.float32)), Constant(np.zeros(3, np.uint8))
    model = Model([quantized(ops.Tanh(ops.DequantizeLinear(x, scale, zero, axis=1)))], [x])
    check_pass(ByteTableFusion, model, config=enabled(), changes=False)


def test_a_number_that_adds_a_dimension_stays() -> None:
    x = Parameter(u8, [3], "x")
    model = Model([quantized(ops.Add(dequantized(x), Constant(np.ones((1, 1), np.float32))))], [x])
    check_pass(ByteTableFusion, model, config=enabled(), changes=False)


def test_values_of_f32_that_others_read_stay() -> None:
    x = Parameter(u8, [3], "x")
    active = ops.Sigmoid(dequantized(x))
    kinds = kinds_after(Model([quantized(active), active], [x]))
    assert sorted(kinds) == ["ByteTable", "DequantizeLinear", "Sigmoid"]


def test_sums_of_f32_are_no_function_of_bytes() -> None:
    x, y = Parameter(u8, [3], "x"), Parameter(f32, [3], "y")
    check_pass(ByteTableFusion, Model([quantized(ops.Add(dequantized(x), y))], [x, y]), config=enabled(), changes=False)


@pytest.mark.parametrize("operator", [ops.PRelu, ops.Mul])
def test_numbers_may_have_the_axes_of_the_tensor(operator: Callable[..., Node]) -> None:
    """onnxruntime's tool keeps a slope [1, 1, 1], which broadcasts to the tensor, but not to its 256 codes."""
    x = Parameter(u8, [2, 3, 4, 5], "x")
    value = operator(dequantized(x), Constant(np.full((1, 1, 1), 0.25, np.float32)))
    assert kinds_after(Model([quantized(value)], [x])) == ["ByteTable"]


@pytest.mark.parametrize(("rank", "attributes"), [(1, {"axis": 1}), (4, {"axis": 3, "block_size": 5})])
def test_a_single_scale_may_be_that_of_an_axis_but_not_of_a_block(rank: int, attributes: dict[str, int]) -> None:
    x = Parameter(u8, [1, 1, 1, 5], "x")
    scale, zero = (Constant(np.full((1,) * rank, item)) for item in (np.float32(0.1), np.uint8(3)))
    real = ops.DequantizeLinear(x, scale, zero, **attributes)
    model = Model([ops.QuantizeLinear(ops.Tanh(real), scale, zero, **attributes)], [x])
    check_pass(ByteTableFusion, model, config=enabled(), changes=rank == 1)
