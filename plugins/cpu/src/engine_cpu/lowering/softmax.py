"""Softmax, LogSoftmax and LpNormalization, over any axis."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause
from engine.native import Attribute
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder


class AxisLowering(OpLowering[OperatorSpec]):
    """One step over [outer, axis, inner], in place where the input is read by nothing else."""

    kernel: ClassVar[str]

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_f32(node)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        shape = b.shape(x)
        axis = int(attribute(node, "axis")) % len(shape)
        b.step(
            node,
            self.kernel,
            [b.input(x)],
            [b.output(y, in_place_of=x)],
            outer=math.prod(shape[:axis]),
            axis=shape[axis],
            inner=math.prod(shape[axis + 1 :]),
            **self.attributes(node),
        )

    @abstractmethod
    def attributes(self, node: Node) -> dict[str, Attribute]:
        """What the kernel needs besides the sizes."""


@lowers("Softmax", "LogSoftmax")
class SoftmaxLowering(AxisLowering):
    """`log` tells the two apart."""

    kernel = "softmax_f32"

    def attributes(self, node: Node) -> dict[str, Attribute]:
        return {"log": int(node.op_type == "LogSoftmax")}


@lowers("LpNormalization")
class LpNormalizationLowering(AxisLowering):
    """Division by the L1 or L2 norm."""

    kernel = "lp_norm_f32"

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        p = int(attribute(node, "p"))
        return super().check(spec) if p in (1, 2) else Refusal(RefusalCause.ATTRIBUTE, f"p is {p}; expected 1 or 2")

    def attributes(self, node: Node) -> dict[str, Attribute]:
        return {"p": int(attribute(node, "p"))}
