"""The interface of lowerings of operators whose results have a length that their kernels count."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from engine.native import Attribute
from engine.ops.spec import SpecT
from engine.startup import dataclass
from engine_cpu.lowering.registry import OpLowering
from engine_cpu.segment import SegmentBuilder


@dataclass(frozen=True, slots=True)
class CountedStep:
    """The step of an operation; its last output, after the node's outputs, is the counted length, of i64.

    Attributes:
        settings: the kernel's attributes.
        inputs: the numbers of the inputs of the node that the kernel reads.
        shapes: of each output of the node that is present, as if the length had its largest value. The kernel writes
            the result of the actual length to the front.
        axes: for each of them the axis of the counted length; None if all lengths are known.
    """

    kernel: str
    settings: Mapping[str, Attribute]
    inputs: Sequence[int]
    shapes: Sequence[tuple[int, ...]]
    axes: Sequence[int | None]


class CountedLowering(OpLowering[SpecT]):
    """Lowers an operator whose results have a length that follows from data; its nodes run alone, in a plan each."""

    @abstractmethod
    def counted(self, spec: SpecT) -> CountedStep:
        """The step of a node of static input shapes."""

    def check_values(self, spec: SpecT, inputs: Sequence[Any]) -> None:
        """Raise `EngineError` for values that the operator does not accept; the kernel reads `inputs`."""

    def lower(self, spec: SpecT, b: SegmentBuilder) -> None:
        """Never called, since these nodes have segments of their own."""
        raise AssertionError(f"{spec.node} is a segment of its own, not a step of a plan")
