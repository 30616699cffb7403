"""The matrix product step: geometry attributes, packed weights, padded vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.ir import Node, Output
from engine.native import Attribute
from engine.startup import dataclass
from engine_cpu.layout import Layout, padded_channels
from engine_cpu.lowering.factor import ConstantFactor
from engine_cpu.segment import SegmentBuilder

Array = np.ndarray[Any, np.dtype[Any]]

MAX_BATCH_DIMS = 6
"""The maximum number of batch dimensions of the kernel, after merging adjacent ones if strides allow it."""


@dataclass(frozen=True, slots=True)
class BatchDim:
    """One batch dimension: its length, and the strides in elements of A, B and C along it."""

    length: int
    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class Product:
    """C[..., m, n] = sum over k of A[..., m, k] * B[..., k, n]; elements along k of A and along n of C are adjacent.

    `transposed`: B is stored [..., n, k]. Rows are `a_row`, `b_row` and `c_row` elements apart; a residual has the
        layout of C.
    """

    m: int
    n: int
    k: int
    batch: tuple[BatchDim, ...]
    a_row: int
    b_row: int
    c_row: int
    transposed: bool = False

    @classmethod
    def of_shapes(cls, a: Sequence[int], b: Sequence[int], *, trans_b: bool = False) -> Product:
        """MatMul of dense tensors of these shapes; both have at least two dimensions."""
        m, k, n = a[-2], a[-1], b[-2] if trans_b else b[-1]
        if len(b) == 2:  # one B for all rows of A
            m, a = math.prod(a[:-1]), a[-2:]
        dims = merged(batch_dims(a[:-2], b[:-2], m * k, k * n, m * n))
        return cls(m, n, k, dims, k, k if trans_b else n, n, trans_b)

    def attributes(self) -> dict[str, Attribute]:
        """The attributes of `gemm_f32`, except B's."""
        return {
            "m": self.m, "n": self.n, "k": self.k, "batch": [dim.length for dim in self.batch],
            "a_row": self.a_row, "a_batch": [dim.a for dim in self.batch],
            "c_row": self.c_row, "c_batch": [dim.c for dim in self.batch],
        }  # fmt: skip

    def add_step(
        self,
        node: Node,
        b: SegmentBuilder,
        weights: Output,
        operands: tuple[int, int],
        more: Sequence[int],
        attributes: Mapping[str, Attribute],
        *,
        is_dense: bool = True,
        stored: tuple[Layout, Layout] = (Layout.PLAIN, Layout.PLAIN),
    ) -> None:
        """Append the product: `operands` are the buffers of A and C, `more` the buffers of bias, scale and residual.

        `is_dense`: the matrices of B follow each other without gaps, so that constant ones can be packed beforehand.
        `stored`: the layouts of A and C; bf16 requires one constant matrix B in a network of bf16.
        """
        is_one_matrix = not self.batch and self.a_row >= self.k and self.c_row >= self.n
        if b.precision == "bf16" and is_one_matrix and is_dense and b.is_constant(weights):
            given = {"a_f32": int(not stored[0].is_bf16), "c_f32": int(not stored[1].is_bf16), **attributes}
            self._add_bf16_step(node, b, weights, operands, more, given)
            return
        assert stored == (Layout.PLAIN, Layout.PLAIN)
        given = {**self.attributes(), **attributes}
        if given.get("residual"):
            given |= {"residual_row": self.c_row, "residual_batch": [dim.c for dim in self.batch]}
        if is_dense and b.is_constant(weights):
            given["b_batch"] = [dim.b // max(1, self.k * self.n) for dim in self.batch]
            constant = self._factor(b, weights)
            given["b_element"] = element = constant.element()
            factor = b.weights([weights], *constant.widened(element))
        else:
            given |= {"packed": 0, "transposed": int(self.transposed), "b_row": self.b_row}
            given["b_batch"] = [dim.b for dim in self.batch]
            factor = b.input(weights)
        b.step(node, "gemm_f32", [operands[0], factor, *more], [operands[1]], **given)

    def _add_bf16_step(
        self,
        node: Node,
        b: SegmentBuilder,
        weights: Output,
        operands: tuple[int, int],
        more: Sequence[int],
        attributes: Mapping[str, Attribute],
    ) -> None:
        """The same for one matrix times a constant one, with operands rounded to bf16."""
        given = {
            "m": self.m, "n": self.n, "k": self.k, "a_row": self.a_row, "c_row": self.c_row, **attributes,
        }  # fmt: skip
        if given.get("residual"):
            given |= {"residual_f32": 1, "residual_row": self.c_row}
        factor = b.weights([weights], *self._factor(b, weights).in_bf16())
        b.step(node, "gemm_bf16", [operands[0], factor, *more], [operands[1]], **given)

    def _factor(self, b: SegmentBuilder, weights: Output) -> ConstantFactor:
        return ConstantFactor(weights, self.n, self.k, self.transposed, b.store)


def batch_dims(a: Sequence[int], b: Sequence[int], a_size: int, b_size: int, c_size: int) -> list[BatchDim]:
    """The batch dimensions of dense operands with broadcast leading dimensions `a` and `b`; sizes are per matrix."""
    rank = max(len(a), len(b))
    a, b = [1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b)
    dims = []
    for x, y in zip(reversed(a), reversed(b), strict=True):
        length = y if x == 1 else x
        dims.append(BatchDim(length, 0 if x == 1 else a_size, 0 if y == 1 else b_size, c_size))
        a_size, b_size, c_size = a_size * x, b_size * y, c_size * length
    return dims[::-1]


def merged(dims: Sequence[BatchDim]) -> tuple[BatchDim, ...]:
    """The same batch in fewer dimensions: without dimensions of length 1, adjacent ones merged if strides allow it."""
    result: list[BatchDim] = []
    for dim in dims:
        if dim.length == 1:
            continue
        last = result[-1] if result else None
        pairs = () if last is None else ((last.a, dim.a), (last.b, dim.b), (last.c, dim.c))
        if last is not None and all(outer == inner * dim.length for outer, inner in pairs):
            result[-1] = BatchDim(last.length * dim.length, dim.a, dim.b, dim.c)
        else:
            result.append(dim)
    return tuple(result)


def padded_vector(node: Node, b: SegmentBuilder, vector: Output, factor: float = 1.0) -> int:
    """The buffer of `vector`, a value per column, padded to the blocks that kernels read.

    `factor`, for constants only, is multiplied in.
    """
    length = math.prod(b.shape(vector))
    if b.is_constant(vector):

        def make() -> Array:
            padded = np.zeros(padded_channels(length), np.float32)
            padded[:length] = b.value(vector).reshape(-1) * np.float32(factor)
            return padded

        return b.weights([vector], f"padded times {factor}", make)
    source = b.input(vector)
    if length == padded_channels(length):
        return source
    rest = padded_channels(length) - length
    room = b.temporary(4 * (length + rest))
    b.step(node, "copy", [source], [b.part(room, 0, 4 * length)])
    b.step(node, "copy", [b.constant(np.zeros(rest, np.float32))], [b.part(room, 4 * length, 4 * rest)])
    return room
