"""Products of f64 with a constant matrix, by the kernel of linear models."""

from __future__ import annotations

import math

import numpy as np

from engine.ir import Constant, Node, Output
from engine.ir.element_type import f64
from engine.lowering import Refusal, RefusalCause, check_types
from engine_cpu.lowering.linear_scores import row_blocks
from engine_cpu.segment import Array, SegmentBuilder


def check_double(node: Node, *, is_plain: bool) -> Refusal | None:
    """A refusal unless B is a constant matrix, and what is added is a constant row.

    `is_plain`: whether the node has no scale, activation, residual or transposed A.
    """
    if not is_plain:
        return Refusal(
            RefusalCause.ATTRIBUTE, "a product of f64 is scaled, activated or transposed; expected A * B + C"
        )
    refusal = check_types([value for value in (*node.input_values, *node.outputs) if value is not None], {f64})
    if refusal is not None:
        return refusal
    right = node.input_value(1)
    if not isinstance(right.node, Constant) or len(right.shape) != 2 or not right.node.byte_size:
        return Refusal(RefusalCause.CONSTANT, f"B is {right.type}; expected a constant matrix for a product of f64")
    if node.has_input(2) and not _is_row(node.input_value(2), node.output(0)):
        return Refusal(RefusalCause.CONSTANT, "a product of f64 with what is added; expected a constant row")
    return None


def lower_double(node: Node, b: SegmentBuilder, *, transposed: bool, beta: float = 1.0) -> None:
    """Append the product of the rows of A and B ([N, K] if `transposed`), plus beta times a row."""
    left, right = node.input_value(0), node.input_value(1)
    shape = b.shape(left)
    k, n = b.shape(right)[:: -1 if transposed else 1]

    def blocks() -> Array:
        matrix = b.value(right)
        return row_blocks(matrix if transposed else matrix.T)

    added = np.zeros(n)
    if node.has_input(2) and beta != 0:
        added += beta * np.broadcast_to(b.value(node.input_value(2)).reshape(-1), n)
    b.step(
        node,
        "linear_scores",
        [
            b.input(left),
            b.weights([right], f"blocks of f64, transposed {transposed}", blocks),
            b.constant(row_blocks(added.reshape(n, 1))),
        ],
        [b.output(node.output(0))],
        type=f64.name,
        compute=f64.name,
        result=f64.name,
        rows=math.prod(shape[:-1]),
        features=k,
        targets=n,
        complement="none",
        transform="none",
        labels=0,
    )


def _is_row(added: Output, result: Output) -> bool:
    if not isinstance(added.node, Constant):
        return False
    shape = added.node.shape
    return math.prod(shape[:-1]) == 1 and (not shape or shape[-1] == 1 or result.shape[-1] == shape[-1])
