"""MaxPool, AveragePool and LpPool, and global forms: mostly on maps in blocks of 16 channels.

Maxima and global forms of f32 also read PLAIN maps, because reordering a map takes longer than to pool it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from engine.errors import InputError
from engine.ir import Node, TensorType
from engine.ir.element_type import f32, f64, i8, u8
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.native import Attribute
from engine.ops.pool import GlobalLpPoolSpec, PoolSpec
from engine.ops.spec import OperatorSpec, SpecT
from engine_cpu.layout import BLOCK, Layout, LayoutOption, layout_bytes, static_shape
from engine_cpu.lowering.checks import F32, check_spatial_rank, check_steps
from engine_cpu.lowering.conv_geometry import window_attributes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

_MAXIMA: Final = frozenset({f32, u8, i8})
_REDUCED: Final = frozenset({f32, f64})
# The names of the kernel of reductions, by exponent, from 1.
_NORMS: Final = ("l1", "l2")


class _MapLowering(OpLowering[SpecT]):
    """Base of poolings."""

    def layouts(self, spec: SpecT) -> Sequence[LayoutOption]:
        """Blocked maps."""
        outputs = spec.node.num_outputs
        if spec.output().element_type is not f32:
            return (LayoutOption.uniform(Layout.BLOCKED, 1, outputs),)
        return tuple(LayoutOption.uniform(layout, 1, outputs) for layout in (Layout.BLOCKED, Layout.BLOCKED_BF16))


@lowers("MaxPool", "AveragePool", "LpPool", spec=PoolSpec)
class PoolLowering(_MapLowering[PoolSpec]):
    """Pools of one and two axes, in blocks of channels; of three axes, norms, and maxima with indices, in PLAIN."""

    def check(self, spec: PoolSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        if _is_in_blocks(spec):
            return first_refusal(_check_map(spec.node), check_steps(spec))
        allowed = _MAXIMA if spec.op_type == "MaxPool" else F32
        if len(x.shape) > 5:
            return Refusal(RefusalCause.RANK, f"{x.name} has {len(x.shape) - 2} spatial dimensions; expected 1 to 3")
        if spec.storage_order and spec.is_read(1) and len(x.shape) > 4:
            return Refusal(RefusalCause.ATTRIBUTE, "storage_order is 1; expected at most two spatial dimensions")
        return first_refusal(check_types((x, spec.output()), allowed), check_steps(spec))

    def layouts(self, spec: PoolSpec) -> Sequence[LayoutOption]:
        count, x = spec.node.num_outputs, spec.node.input_value(0)
        if not _is_in_blocks(spec):
            return (LayoutOption.uniform(Layout.PLAIN, 1, count),)
        if spec.op_type != "MaxPool" or x.element_type is not f32 or _width(spec) < BLOCK:
            return super().layouts(spec)
        # Windows of rows take longer than of blocks: as long as half of a reorder of the input.
        cost = layout_bytes(static_shape(x), f32, Layout.PLAIN)
        return (*super().layouts(spec), LayoutOption.uniform(Layout.PLAIN, 1, count, cost))

    def lower(self, spec: PoolSpec, b: SegmentBuilder) -> None:
        if not b.option(spec.node).inputs[0].is_blocked:
            _window_step(spec, b)
            return
        attributes = window_attributes(spec.at(b.shape(spec.node.input_value(0))).with_axes(2))
        if spec.op_type == "AveragePool":
            attributes["count_include_pad"] = int(spec.count_include_pad)
        _step(spec.node, b, attributes)


def _is_in_blocks(spec: PoolSpec) -> bool:
    """Whether the kernels on blocks of channels compute a pooling."""
    return spec.op_type != "LpPool" and not spec.is_read(1) and len(spec.node.input_value(0).shape) < 5


def _width(spec: PoolSpec) -> int:
    """The length of rows of the result: short ones do not fill vectors."""
    return static_shape(spec.output())[-1]


def _window_step(spec: PoolSpec, b: SegmentBuilder) -> None:
    x, outputs = spec.node.input_value(0), [spec.output()]
    shape = b.shape(x)
    window = spec.at(shape)
    if min(window.outputs) < 1:
        raise InputError(f"{spec.node}: a window of {list(window.kernel)} does not fit an input of shape {list(shape)}")
    window = window.with_axes(3)
    attributes: dict[str, Attribute] = {"op": ("MaxPool", "AveragePool", "LpPool").index(spec.op_type)}
    if spec.op_type == "MaxPool":
        outputs += [spec.output(1)] if spec.is_read(1) else []
        attributes |= {"positions": len(outputs) - 1, "column_major": spec.storage_order}
    elif spec.op_type == "AveragePool":
        attributes["counts_padding"] = int(spec.count_include_pad)
    else:
        attributes["power"] = spec.p
    b.step(
        spec.node,
        "window_pool",
        [b.input(x)],
        [b.output(each) for each in outputs],
        type=x.element_type.name,
        maps=shape[0] * shape[1],
        out=list(window.outputs),
        kernel=list(window.kernel),
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.pads_begin, *window.pads_end],
        **{"in": list(window.inputs)},
        **attributes,
    )


@lowers("GlobalMaxPool", "GlobalAveragePool")
class GlobalPoolLowering(_MapLowering[OperatorSpec]):
    """A pooling whose window is the whole map: of blocks of channels as one row, otherwise a reduction of PLAIN."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        if _has_map_of_blocks(spec.node):
            return _check_map(spec.node)
        is_maximum = spec.op_type == "GlobalMaxPool"
        return check_types((spec.node.input_value(0), spec.output()), _REDUCED | _MAXIMA if is_maximum else _REDUCED)

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        x, plain = spec.node.input_value(0), LayoutOption.uniform(Layout.PLAIN, 1)
        if _has_map_of_blocks(spec.node):
            # The mean of no pixels is 0 in blocks, and NaN as a reduction.
            is_reduction = x.element_type is f32 and 0 not in static_shape(x)
            return (*super().layouts(spec), *([plain] if is_reduction else ()))
        is_map = x.element_type is f32 and len(x.shape) > 4
        return (plain, *(super().layouts(spec) if is_map else ()))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        if b.option(spec.node).inputs[0].is_blocked:
            global_pool_step(spec.node, b)
        else:
            _reduction_step(spec, b, "max" if spec.op_type == "GlobalMaxPool" else "mean")


def _has_map_of_blocks(node: Node) -> bool:
    """Whether the kernels on blocks of channels compute a global pooling."""
    x = node.input_value(0)
    return isinstance(x.type, TensorType) and x.element_type is not f64 and x.shape.rank.max in (3, 4)


@lowers("GlobalLpPool", spec=GlobalLpPoolSpec)
class GlobalLpPoolLowering(OpLowering[GlobalLpPoolSpec]):
    """Sums of absolute values, and Euclidean norms."""

    def check(self, spec: GlobalLpPoolSpec) -> Refusal | None:
        if spec.p > len(_NORMS):
            return Refusal(RefusalCause.ATTRIBUTE, f"p is {spec.p}; expected 1 or 2")
        return check_types((spec.node.input_value(0), spec.output()), _REDUCED)

    def lower(self, spec: GlobalLpPoolSpec, b: SegmentBuilder) -> None:
        _reduction_step(spec, b, _NORMS[spec.p - 1])


def _reduction_step(spec: OperatorSpec, b: SegmentBuilder, op: str) -> None:
    x = spec.node.input_value(0)
    shape = b.shape(x)
    axes = list(range(2, len(shape)))
    b.step(spec.node, "reduce", [b.input(x)], [b.output(spec.output())],
           op=op, type=x.element_type.name, shape=shape, axes=axes)  # fmt: skip


def global_pool_step(node: Node, b: SegmentBuilder) -> None:
    """Append the pooling of all pixels of blocked maps: their maximum for a maximum, otherwise their mean."""
    pixels = math.prod(b.shape(node.input_value(0))[2:])
    _step(node, b, {"in": [1, pixels], "out": [1, 1], "kernel": [1, max(1, pixels)]})


def _check_map(node: Node) -> Refusal | None:
    x = node.input_value(0)
    if refused := first_refusal(
        check_types((x, node.output(0)), _MAXIMA if node.op_type.endswith("MaxPool") else F32), check_spatial_rank(x)
    ):
        return refused
    if x.shape[1].is_static and x.shape[1].min == 0:
        return Refusal(RefusalCause.SHAPE, f"X has no channels: {x.shape}")
    return None


def _step(node: Node, b: SegmentBuilder, attributes: dict[str, Attribute]) -> None:
    source, out, layout = node.input_value(0), node.output(0), b.option(node).outputs[0]
    batch, channels = b.shape(source)[:2]
    kernel = "max_pool" if node.op_type.endswith("MaxPool") else "average_pool"
    suffix = "bf16" if layout.is_bf16 else source.element_type.name
    given: dict[str, Attribute] = {"batch": batch, "in_channels": channels, "out_channels": channels, **attributes}
    b.step(node, f"{kernel}_{suffix}", [b.input(source, layout)], [b.output(out, layout)], **given)
