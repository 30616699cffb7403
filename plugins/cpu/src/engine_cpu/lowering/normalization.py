"""Normalizations over trailing axes: LayerNormalization and RMSNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.ir import Node, Output
from engine.lowering import Refusal, RefusalCause, first_refusal, is_known_when_bound
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_F32 = 1
"""The one `stash_type` of f32 inputs: TensorProto.FLOAT."""
_KERNELS = {"LayerNormalization": "layer_norm_f32", "RMSNormalization": "rms_norm_f32"}


def check_stash_type(node: Node) -> Refusal | None:
    """A refusal unless the statistics are computed in f32."""
    stash_type = int(attribute(node, "stash_type"))
    if stash_type == _F32:
        return None
    return Refusal(RefusalCause.ATTRIBUTE, f"stash_type is {stash_type}; kernels compute in f32 ({_F32})")


@lowers("LayerNormalization", "RMSNormalization")
class RowNormalizationLowering(OpLowering[OperatorSpec]):
    """One step over [rows, columns], in place where the input is read by nothing else."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(check_f32(node), check_stash_type(node), _check_parameters(node))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        shape = b.shape(x)
        axis = int(attribute(node, "axis")) % len(shape)
        columns = shape[axis:]
        parameters = [node.input_value(i) for i in (1, 2) if node.has_input(i)]
        sources = [b.input(x), *(_parameter(b, value, columns) for value in parameters)]
        statistics = [value for value in node.outputs[1:] if value.num_consumers]
        b.step(
            node,
            _KERNELS[node.op_type],
            sources,
            [b.output(y, in_place_of=x), *(b.output(value) for value in statistics)],
            rows=math.prod(shape[:axis]),
            columns=math.prod(columns),
            epsilon=float(attribute(node, "epsilon")),
            scale=1,
            bias=int(node.has_input(2)),
            mean=_stores(node, 1),
            inv_std=_stores(node, 2),
        )


def _stores(node: Node, index: int) -> int:
    return int(node.num_outputs > index and node.output(index).num_consumers > 0)


def _parameter(b: SegmentBuilder, value: Output, columns: Sequence[int]) -> int:
    """A scale or bias with one value a column."""
    shape = b.shape(value)
    if math.prod(shape) == math.prod(columns):
        return b.input(value)

    def broadcast() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        array = b.value(value)
        return np.broadcast_to(array.reshape(array.shape[-len(columns) :]), columns).astype(np.float32)

    return b.weights([value], f"broadcast to {tuple(columns)}", broadcast)


def _check_parameters(node: Node) -> Refusal | None:
    return first_refusal(*(_check_parameter(node, i) for i in (1, 2) if node.has_input(i)))


def _check_parameter(node: Node, index: int) -> Refusal | None:
    """A refusal unless the parameter is the same for all rows, and constant where it is broadcast over columns."""
    x, value = node.input_value(0), node.input_value(index)
    axis = int(attribute(node, "axis")) % len(x.shape)
    columns = list(x.shape)[axis:]
    leading = len(value.shape) - len(columns)
    if any(dimension != 1 for dimension in list(value.shape)[: max(0, leading)]):
        return Refusal(RefusalCause.SHAPE, f"{value.name} is {value.type}, which differs between rows of {columns}")
    own = list(value.shape)[max(0, leading) :]
    is_dense = leading >= 0 and all(a.is_static and a == c for a, c in zip(own, columns, strict=True))
    if is_dense or is_known_when_bound(value):
        return None
    return Refusal(
        RefusalCause.CONSTANT, f"{value.name} is {value.type} and no constant; expected one value for each of {columns}"
    )
