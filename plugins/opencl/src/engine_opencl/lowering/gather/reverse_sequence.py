"""Lowers ReverseSequence, which reverses the first steps of each sequence."""

from __future__ import annotations

import math

from engine.ir.element_type import i64
from engine.lowering import Refusal
from engine.ops.gather import ReverseSequenceSpec
from engine_opencl.elements import STORED, moved_c_type
from engine_opencl.lowering.gather.indices import check_lengths
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source


@lowers("ReverseSequence", spec=ReverseSequenceSpec)
class ReverseSequenceLowering(MovingLowering[ReverseSequenceSpec]):
    """Reverses each sequence up to its length."""

    def check(self, spec: ReverseSequenceSpec) -> Refusal | None:
        return check_types(spec.node.input_values[:1], STORED) or check_types(spec.node.input_values[1:], {i64})

    def lower(self, spec: ReverseSequenceSpec, b: LaunchPlanBuilder) -> None:
        x, lengths = spec.node.input_value(0), spec.node.input_value(1)
        first, second, *rest = b.shape(x)
        inner = math.prod(rest)
        source = kernel_source(
            "reverse_sequence", T=moved_c_type(x.element_type), A=first, B=second, INNER=inner,
            TIME_FIRST=int(spec.time_axis == 0),
        )  # fmt: skip
        arguments: list[Given] = [b.input(x), b.input(lengths), b.output(spec.output())]
        check_lengths(b, lengths, second if spec.time_axis else first)
        b.launch(source, "reverse_sequence", arguments, (inner, second, first))
