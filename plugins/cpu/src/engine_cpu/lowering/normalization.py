"""Normalizations over trailing axes, LayerNormalization and RMSNormalization, and over one axis: LpNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.ir import Output
from engine.lowering import Refusal, RefusalCause, check_stash_type, first_refusal, is_known_when_bound
from engine.ops.classical_specs import NormalizerSpec
from engine.ops.normalization import LpNormalizationSpec, RowNormalizationSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.softmax import step_along_axis
from engine_cpu.segment import SegmentBuilder


@lowers("LayerNormalization", "RMSNormalization", spec=RowNormalizationSpec)
class RowNormalizationLowering(OpLowering[RowNormalizationSpec]):
    """One step over [rows, columns], in place if nothing else reads the input."""

    def check(self, spec: RowNormalizationSpec) -> Refusal | None:
        parameters = [value for value in (spec.scale, spec.bias) if value is not None]
        return first_refusal(
            check_f32(spec.node),
            check_stash_type(spec.stash_type),
            *(_check_parameter(spec, value) for value in parameters),
        )

    def lower(self, spec: RowNormalizationSpec, b: SegmentBuilder) -> None:
        x = spec.node.input_value(0)
        rows, columns = spec.at(spec.input_shapes())
        parameters = [_parameter(b, value, columns) for value in (spec.scale, spec.bias) if value is not None]
        statistics = [b.output(spec.output(index)) for index in (1, 2) if spec.is_read(index)]
        b.step(
            spec.node,
            "layer_norm_f32" if spec.is_centred else "rms_norm_f32",
            [b.input(x), *parameters],
            [b.output(spec.output(), in_place_of=x), *statistics],
            rows=rows,
            columns=math.prod(columns),
            epsilon=spec.epsilon,
            scale=1,
            bias=int(spec.bias is not None),
            mean=int(spec.is_read(1)),
            inv_std=int(spec.is_read(2)),
        )


@lowers("LpNormalization", spec=LpNormalizationSpec)
class LpNormalizationLowering(OpLowering[LpNormalizationSpec]):
    """Division by the L1 or L2 norm."""

    def check(self, spec: LpNormalizationSpec) -> Refusal | None:
        return check_f32(spec.node)

    def lower(self, spec: LpNormalizationSpec, b: SegmentBuilder) -> None:
        step_along_axis(spec, b, "lp_norm_f32", spec.at(spec.input_shapes()), p=spec.p)


@lowers("Normalizer", domain="ai.onnx.ml", spec=NormalizerSpec)
class NormalizerLowering(OpLowering[NormalizerSpec]):
    """Rows divided by their greatest value, L1 or L2 norm."""

    def check(self, spec: NormalizerSpec) -> Refusal | None:
        return check_f32(spec.node)

    def lower(self, spec: NormalizerSpec, b: SegmentBuilder) -> None:
        x = spec.node.input_value(0)
        *outer, axis = b.shape(x)
        y = b.output(spec.node.output(0), in_place_of=x)
        b.step(
            spec.node,
            "lp_norm_f32",
            [b.input(x)],
            [y],
            outer=math.prod(outer),
            axis=axis,
            inner=1,
            p={"MAX": 0, "L1": 1, "L2": 2}[spec.norm],
            keeps_zeros=1,
        )


def _parameter(b: SegmentBuilder, value: Output, columns: Sequence[int]) -> int:
    """A scale or bias with one value per column."""
    shape = b.shape(value)
    if math.prod(shape) == math.prod(columns):
        return b.input(value)

    def broadcast() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        array = b.value(value)
        return np.broadcast_to(array.reshape(array.shape[-len(columns) :]), columns).astype(np.float32)

    return b.weights([value], f"broadcast to {tuple(columns)}", broadcast)


def _check_parameter(spec: RowNormalizationSpec, value: Output) -> Refusal | None:
    """A refusal unless the parameter is the same for all rows, and constant if it is broadcast over columns."""
    columns = list(spec.node.input_value(0).shape)[spec.axis :]
    leading = len(value.shape) - len(columns)
    if any(dimension != 1 for dimension in list(value.shape)[: max(0, leading)]):
        return Refusal(
            RefusalCause.SHAPE, f"{value.name} is {value.type}; expected the same values for each row of {columns}"
        )
    own = list(value.shape)[max(0, leading) :]
    is_dense = leading >= 0 and all(a.is_static and a == c for a, c in zip(own, columns, strict=True))
    if is_dense or is_known_when_bound(value):
        return None
    return Refusal(
        RefusalCause.CONSTANT,
        f"{value.name} is {value.type} and not constant; expected one value for each of {columns}",
    )
