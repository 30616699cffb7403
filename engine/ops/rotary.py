"""RotaryEmbedding: its spec; ONNX's own inference and evaluation are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import OperatorSpecError
from engine.ir import Node, Output
from engine.ops.attention import Heads
from engine.ops.spec import OperatorSpec, check_rank, refuse, specifies


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryLengths:
    """What the lengths of a RotaryEmbedding's inputs decide.

    Attributes:
        x: the input, and the output, as they lie in memory.
        rotated: how many elements of each head are rotated, from the first on; even.
        positions: how many positions the tables have; 0 where they hold a row for each batch and row of x.
    """

    x: Heads
    rotated: int
    positions: int


@specifies("RotaryEmbedding")
@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec(OperatorSpec):
    """The attributes of RotaryEmbedding.

    Attributes:
        interleaved: whether pairs that are rotated are neighbours; else the two halves of what is rotated are pairs.
        num_heads: the heads of an input [B, S, heads * size].
        rotary_embedding_dim: how many elements of each head are rotated; 0 is all of them.
    """

    interleaved: bool
    num_heads: int | None
    rotary_embedding_dim: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
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
        given["interleaved"] = bool(given["interleaved"])

    @property
    def position_ids(self) -> Output | None:
        """The row of the tables for each batch and row of x."""
        return self.input(3)

    def at(self, shapes: Sequence[Sequence[int] | None]) -> RotaryLengths:
        """What the shapes of the inputs decide. Raises `OperatorSpecError` if they do not fit each other."""
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
        if cosines != expected or sines != expected or positions not in (None, rows):
            raise OperatorSpecError(
                f"{self.node}: the tables have shapes {cosines} and {sines}, position_ids {positions}; allowed for X "
                f"{x}: {expected} and {rows}"
            )
        return RotaryLengths(x=found, rotated=rotated, positions=0 if positions is None else expected[0])
