"""`ByteTable`: any function of one 8-bit integer, as a table of its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import ElementType, Node, Output, OutputLike, PartialShape
from engine.ir.element_type import i32
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import fail

Array = np.ndarray[Any, np.dtype[Any]]

_BYTES: Final = ["tensor(uint8)", "tensor(int8)"]
_SIZE: Final = 256


def ByteTable(x: OutputLike, table: OutputLike) -> Node:  # noqa: N802 - as the operators are called
    """The value of `table` for each element of `x`.

    Args:
        x: u8 or i8.
        table: 256 values of u8 or i8, in the order of `byte_codes` of the type of `x`.
    """
    return create("ByteTable", [x, table], domain=INTERNAL_DOMAIN)


def byte_codes(element_type: ElementType) -> Array:
    """All integers of u8 or i8 in the order of a table: 0 to 127, then 128 to 255 or -128 to -1."""
    return np.arange(_SIZE, dtype=np.uint8).view(element_type.numpy)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, table = padded(inputs, 2)
    assert x is not None
    assert table is not None
    if not table.shape.compatible(PartialShape((_SIZE,))):
        fail(node, f"input 1 (table) is {table.type} and must have {_SIZE} values")
    # A negative index counts from the end, where a table has the values of negative integers.
    places = create("Cast", [x], {"to": i32.onnx})
    return [create("Gather", [table, places], {"axis": 0}).output(0)]


define(
    "ByteTable",
    [("X", False), ("table", False)],
    {},
    _decompose,
    "The value of a table of 256 for each element of X.",
    {"X": _BYTES, "table": _BYTES},
    _BYTES,
)
