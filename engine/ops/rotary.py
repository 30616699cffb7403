"""RotaryEmbedding: its spec; ONNX's own inference and evaluation are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import OperatorSpecError
from engine.ir import Node, Output
from engine.ops.attention import Heads
from engine.ops.precision import widened
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, compiles
from engine.ops.spec import OperatorSpec, check_rank, refuse, specifies
from engine.ops.traits import declare
from engine.startup import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryLengths:
    """The facts of a RotaryEmbedding that follow from its inputs' shapes.

    Attributes:
        x: the memory layout of the input and the output.
        rotated: the number of elements at the start of each head that are rotated; even.
        positions: the number of positions in the tables; 0 if they have a row for each batch and row of x.
        shares_tables: without positions, all batches of x have the same tables, of batch 1, as torch exports them.
    """

    x: Heads
    rotated: int
    positions: int
    shares_tables: bool


declare("RotaryEmbedding", addresses=3)


@specifies("RotaryEmbedding")
@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec(OperatorSpec):
    """The attributes of RotaryEmbedding.

    Attributes:
        interleaved: whether rotated pairs are neighbours; otherwise, they are corresponding elements of the two halves.
        num_heads: the number of heads of an input [B, S, heads * size].
        rotary_embedding_dim: the number of rotated elements of each head; 0 is all of them.
    """

    interleaved: bool
    num_heads: int | None
    rotary_embedding_dim: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank = check_rank(node, 0, 3, 4)
        has_positions = node.has_input(3)
        for index in (1, 2):
            check_rank(node, index, 2 if has_positions else 3)
        check_rank(node, 3, 2)
        heads, rotated = given["num_heads"], given["rotary_embedding_dim"]
        if rank == 3 and not heads:
            refuse(node, "num_heads", heads, "1 or more, as X has rank 3")
        if heads is not None and heads < 0:
            refuse(node, "num_heads", heads, "0 or more")
        if rotated < 0 or rotated % 2:
            refuse(node, "rotary_embedding_dim", rotated, "an even number, or 0 for the size of a head")

    @property
    def position_ids(self) -> Output | None:
        """The row of the tables for each batch and row of x."""
        return self.input(3)

    def at(self, shapes: Sequence[Sequence[int] | None]) -> RotaryLengths:
        """The facts that follow from the inputs' shapes. Raises `OperatorSpecError` if the shapes do not fit."""
        x, cosines, sines, positions = [None if s is None else tuple(s) for s in (*shapes, None)[:4]]
        assert x is not None
        heads = self.num_heads or 1
        if len(x) == 3 and x[2] % heads:
            raise OperatorSpecError(f"{self.node}: {heads} heads do not divide the width {x[2]} of X")
        found = Heads.of(x, heads)
        rotated = self.rotary_embedding_dim or found.size
        if rotated % 2 or rotated > found.size:
            raise OperatorSpecError(
                f"{self.node}: cannot rotate {rotated} of the {found.size} elements of a head; allowed: an even number"
            )
        rows = (found.batch, found.rows)
        expected = (*rows, rotated // 2) if positions is None else ((cosines or (0,))[0], rotated // 2)
        shares_tables = positions is None and rows[0] != 1 and cosines == (1, *expected[1:])
        if shares_tables:
            expected = (1, *expected[1:])
        if cosines != expected or sines != expected or positions not in (None, rows):
            raise OperatorSpecError(
                f"{self.node}: the tables have shapes {cosines} and {sines}, position_ids {positions}; allowed for X "
                f"{x}: {expected} and {rows}"
            )
        count = 0 if positions is None else expected[0]
        return RotaryLengths(x=found, rotated=rotated, positions=count, shares_tables=shares_tables)


@compiles("RotaryEmbedding")
def _compile_rotary(node: Node) -> Evaluator:
    """Of f16 and bf16 in f32: ONNX's reference rounds each product before the sum."""
    run = compile_onnx(node)
    return lambda inputs: run([*map(widened, inputs[:3]), *inputs[3:]])
