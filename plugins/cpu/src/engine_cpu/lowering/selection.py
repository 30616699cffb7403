"""What looks along one axis: ArgMax, ArgMin, Hardmax, TopK, CumSum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.errors import InputError
from engine.ir import Node
from engine.ir.element_type import f32, i8, i32, i64, u8
from engine.lowering import Refusal, RefusalCause, check_constant, check_types, first_refusal
from engine.native import Attribute
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_TYPES: Final = frozenset({f32, i32, i64})
_ARG_TYPES: Final = _TYPES | {u8, i8}


def _around(shape: Sequence[int], axis: int) -> dict[str, Attribute]:
    """The sizes before, along and behind an axis."""
    axis %= len(shape)
    return {"outer": math.prod(shape[:axis]), "axis": shape[axis], "inner": math.prod(shape[axis + 1 :])}


def _check_rank(node: Node) -> Refusal | None:
    """A refusal of scalars, which have no axis."""
    return Refusal(RefusalCause.SHAPE, "the input is a scalar") if len(node.input_value(0).shape) == 0 else None


@lowers("ArgMax", "ArgMin")
class ArgLowering(OpLowering[OperatorSpec]):
    """Positions of extremes; a NaN is the extreme."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        return check_types(node.input_values, _ARG_TYPES) or _check_rank(node)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        node = spec.node
        x = node.input_value(0)
        axis = int(attribute(node, "axis"))
        if b.shape(x)[axis] == 0 and 0 not in b.shape(node.output(0)):
            given = list(b.shape(x))
            raise InputError(f"{node.op_type} `{node.friendly_name}`: an input {given} has no extreme along the axis")
        b.step(
            node,
            "arg_reduce",
            [b.input(x)],
            [b.output(node.output(0))],
            type=x.element_type.name,
            min=int(node.op_type == "ArgMin"),
            last=int(bool(attribute(node, "select_last_index"))),
            **_around(b.shape(x), axis),
        )


@lowers("Hardmax")
class HardmaxLowering(OpLowering[OperatorSpec]):
    """1 at the first maximum."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        return check_f32(node) or _check_rank(node)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        node = spec.node
        x = node.input_value(0)
        sizes = _around(b.shape(x), int(attribute(node, "axis")))
        b.step(node, "hardmax_f32", [b.input(x)], [b.output(node.output(0))], **sizes)


@lowers("TopK")
class TopKLowering(OpLowering[OperatorSpec]):
    """Sorted, whether or not that is asked for; a NaN is larger than any number. How many has to be known."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        return first_refusal(check_constant(node, 1), check_types([node.input_value(0)], _TYPES)) or _check_rank(node)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        node = spec.node
        x = node.input_value(0)
        b.step(
            node,
            "top_k",
            [b.input(x)],
            [b.output(output) for output in node.outputs],
            type=x.element_type.name,
            k=int(b.value(node.input_value(1)).item()),
            smallest=int(not attribute(node, "largest")),
            **_around(b.shape(x), int(attribute(node, "axis"))),
        )


@lowers("CumSum")
class CumSumLowering(OpLowering[OperatorSpec]):
    """Running sums along an axis that has to be known."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        return first_refusal(check_constant(node, 1), check_types([node.input_value(0)], _TYPES)) or _check_rank(node)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        node = spec.node
        x = node.input_value(0)
        source = b.input(x)
        b.step(
            node,
            "cum_sum",
            [source],
            [b.output(node.output(0), in_place_of=x)],
            type=x.element_type.name,
            exclusive=int(bool(attribute(node, "exclusive"))),
            reverse=int(bool(attribute(node, "reverse"))),
            **_around(b.shape(x), int(b.value(node.input_value(1)).item())),
        )
