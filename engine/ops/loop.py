"""The roles of a Loop's formal inputs, of which the first two may be omitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.ir import Constant, Node, Output
from engine.startup import dataclass

NUM_FIXED: Final = 2
"""The inputs before the carried ones: the number of iterations, and the condition."""


@dataclass(frozen=True, slots=True)
class LoopForm:
    """The inputs that decide how often a Loop's body runs.

    Attributes:
        count: the largest number of iterations; None if only the condition ends the loop.
        condition: whether the first iteration runs; None if the loop ignores the condition that its body computes.
            The condition that the body reads is then true in every iteration.
        num_carried: the number of values that an iteration passes on to the next one.
    """

    count: Output | None
    condition: Output | None
    num_carried: int

    @classmethod
    def of(cls, node: Node) -> LoopForm:
        """Separate the formal inputs of a Loop: trip count, condition, and the number of carried values."""
        count, condition = formal_inputs(node.input_values, node.num_formal_inputs)[:NUM_FIXED]
        return cls(count, condition, max(0, node.num_formal_inputs - NUM_FIXED))

    @property
    def never_runs(self) -> bool:
        """Whether constants decide that no iteration runs, whatever the body is."""
        return _is_less(self.count, 1) or _is_less(self.condition, True)


def _is_less(value: Output | None, limit: int) -> bool:
    source = None if value is None else value.node
    return isinstance(source, Constant) and source.data.size == 1 and bool(source.data.reshape(-1)[0] < limit)


def formal_inputs(values: Sequence[Any], num_formal: int) -> list[Any]:
    """The formal ones of a Loop's inputs, with None for fixed ones that are omitted at the end."""
    return [*values[:num_formal], *[None] * (NUM_FIXED - num_formal)]
