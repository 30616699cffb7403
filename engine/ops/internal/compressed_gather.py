"""`CompressedGather`: rows of a table of integers, each block of which has a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.ir import Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.internal.compressed_matmul import INTEGERS
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.spec import OperatorSpec, check_rank, refuse, specifies
from engine.startup import dataclass


def CompressedGather(  # noqa: N802 - constructors of operators are called as the operators are
    data: OutputLike,
    indices: OutputLike,
    scale: OutputLike,
    zero_point: OutputLike | None = None,
    *,
    block_size: int,
) -> Node:
    """Rows of `(data - zero_point) * scale`, where `block_size` elements of a row share a scale.

    Args:
        data: [rows, columns], integers of 2, 4 or 8 bits.
        indices: i32 or i64, of any shape; negative ones count from the end.
        scale: [rows, ceil(columns / block_size)], f32.
        zero_point: of the data's type and the scale's shape; 0 if omitted.
        block_size: 1 or more; the number of columns for one scale per row.
    """
    inputs = [data, indices, scale, zero_point]
    return create("CompressedGather", inputs, {"block_size": block_size}, domain=INTERNAL_DOMAIN)


@specifies("CompressedGather", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedGatherSpec(OperatorSpec):
    """The operands and attributes of `CompressedGather`, which documents them."""

    block_size: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["block_size"] < 1:
            refuse(node, "block_size", given["block_size"], "1 or more")
        for index in (0, 2, 3):
            check_rank(node, index, 2)

    @property
    def data(self) -> Output:
        """The quantized table, [rows, columns]."""
        return self.node.input_value(0)

    @property
    def indices(self) -> Output:
        """The rows to read; of any shape, which begins the shape of the result."""
        return self.node.input_value(1)

    @property
    def scale(self) -> Output:
        """The scales, [rows, blocks]: one for each block of `block_size` columns."""
        return self.node.input_value(2)

    @property
    def zero_point(self) -> Output | None:
        """[rows, blocks], of the data's type; None for 0."""
        return self.input(3)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    data, indices, scale, zero_point = padded(inputs, 4)
    attributes = {"axis": 1, "block_size": CompressedGatherSpec.of(node).block_size}
    table = create("DequantizeLinear", [data, scale, zero_point], attributes)
    return [create("Gather", [table, indices], {"axis": 0}).output(0)]


define(
    "CompressedGather",
    [("data", False), ("indices", False), ("scale", False), ("zero_point", True)],
    {"block_size": 128},
    _decompose,
    "Gather(DequantizeLinear(data, scale, zero_point, axis=1, block_size), indices, axis=0).",
    {
        "data": INTEGERS,
        "indices": ["tensor(int32)", "tensor(int64)"],
        "scale": ["tensor(float)"],
        "zero_point": INTEGERS,
    },
)
