"""Look-ups in tables of few bits become one operator. If it fails, embeddings take eight times their memory, or rows
have the wrong scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Output, Parameter, f32, i8, i32, i64, u8
from engine.ir.element_type import i2, i4, u2, u4
from engine.ops.internal import CompressedGather, as_onnx
from engine.passes import check_equivalence
from engine.passes.common.compressed_gather_fusion import CompressedGatherFusion

Apply = Callable[..., Counter[str]]
RNG = np.random.default_rng(0)
ROWS, COLUMNS = 7, 20


def codes(*shape: int, type: ElementType = i4) -> Constant:
    low = -(1 << (type.bits - 1)) if type.is_signed else 0
    return Constant(RNG.integers(low, low + (1 << type.bits), shape).astype(type.numpy))


def scales(*shape: int) -> Constant:
    return Constant(RNG.uniform(0.01, 0.1, shape).astype(np.float32))


def looked_up(table: Output | Any, index_type: ElementType = i64, **attributes: Any) -> Model:
    indices = Parameter(index_type, [2, "N"], "indices")
    return Model([ops.Gather(table, indices, **attributes)], [indices])


def check(model: Model, apply: Apply) -> None:
    before = model.clone()
    assert apply(model, CompressedGatherFusion) == {"CompressedGather": 1}
    indices = np.array([[0, -1, 3], [ROWS - 1, -ROWS, 2]]).astype(model.parameters[0].output(0).element_type.numpy)
    check_equivalence(before, model, inputs={"indices": indices})


@pytest.mark.parametrize("type", [i2, u2, i4, u4, i8, u8], ids=str)
@pytest.mark.parametrize("block", [8, 20])
def test_blocks_of_each_type(type: ElementType, block: int, apply: Apply) -> None:
    blocks = -(-COLUMNS // block)
    table = ops.DequantizeLinear(
        codes(ROWS, COLUMNS, type=type), scales(ROWS, blocks), codes(ROWS, blocks, type=type), axis=1, block_size=block
    )
    check(looked_up(table), apply)


def test_a_scale_for_each_row(apply: Apply) -> None:
    table = ops.DequantizeLinear(codes(ROWS, COLUMNS), scales(ROWS), codes(ROWS), axis=0)
    check(looked_up(table, i32), apply)


def test_one_scale(apply: Apply) -> None:
    check(looked_up(ops.DequantizeLinear(codes(ROWS, COLUMNS), scales(), codes())), apply)


def unchanged() -> dict[str, Model]:
    whole, blocks = codes(ROWS, COLUMNS), scales(1, COLUMNS)
    halves = Constant(scales(ROWS).data.astype(np.float16))
    return {
        "columns": looked_up(ops.DequantizeLinear(whole, scales(ROWS, 3), axis=1, block_size=8), axis=1),
        "scales of columns": looked_up(ops.DequantizeLinear(whole, scales(COLUMNS), axis=1)),
        "blocks of rows": looked_up(ops.DequantizeLinear(whole, blocks, axis=0, block_size=8)),
        "three dimensions": looked_up(ops.DequantizeLinear(codes(ROWS, 2, 3), scales())),
        "f16": looked_up(ops.DequantizeLinear(whole, halves, axis=0)),
    }


@pytest.mark.parametrize("name", list(unchanged()))
def test_other_forms_stay(name: str, apply: Apply) -> None:
    assert "CompressedGather" not in apply(unchanged()[name], CompressedGatherFusion, modified=False)


def test_an_export_has_onnx_operators() -> None:
    indices = Parameter(i64, [3], "indices")
    node = CompressedGather(codes(ROWS, COLUMNS), indices, scales(ROWS, 3), block_size=8)
    model = as_onnx(Model([node], [indices]))
    assert {each.op_type for each in model.ordered_nodes()} >= {"DequantizeLinear", "Gather"}
    assert model.results[0].input_value(0).element_type is f32
