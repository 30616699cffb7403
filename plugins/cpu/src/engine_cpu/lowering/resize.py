"""Resize of any axes: two adjacent axes per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from engine.lowering import Refusal, check_types, first_refusal, require_elements
from engine.ops.resize import ResizedAxis, ResizeSpec, ResizeTaps
from engine_cpu.layout import Layout, LayoutOption, item_size
from engine_cpu.lowering.checks import F32, check_values
from engine_cpu.lowering.pad import value_bits
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import check_movable, is_byte_map, is_map, physical
from engine_cpu.segment import SegmentBuilder

_WHOLE = ResizeTaps(np.zeros((1, 1), np.int32), np.ones((1, 1)))
"""An axis of one element that is not resized."""
_NOTHING = ResizeTaps(np.zeros((0, 1), np.int32), np.ones((0, 1)))


@lowers("Resize", spec=ResizeSpec)
class ResizeLowering(OpLowering[ResizeSpec]):
    """Nearest of any element type, linear and cubic in f32."""

    values = (1, 2, 3)

    def check(self, spec: ResizeSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        is_float = None if spec.mode == "nearest" else check_types([x], F32)
        return first_refusal(check_movable(x), is_float, check_values(spec.node, self.values))

    def layouts(self, spec: ResizeSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        x, y = node.input_value(0), node.output(0)
        is_blocked = is_map(x) or (is_byte_map(x) and spec.mode == "nearest")
        if not is_blocked or x.shape[0] != y.shape[0] or x.shape[1] != y.shape[1]:
            return (plain,)
        inputs = (Layout.BLOCKED, *(Layout.PLAIN for _ in range(node.num_inputs - 1)))
        return (plain, LayoutOption(inputs, (Layout.BLOCKED,)))

    def lower(self, spec: ResizeSpec, b: SegmentBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        layout = b.option(spec.node).inputs[0]
        axes = spec.at(b.shape(x), *b.values(spec, 1, 2, 3)).axes
        require_elements(spec.node, [axis.length for axis in axes], "an interpolation")
        if not axes:
            b.alias_blocked(y, x, layout)
            return
        shape = list(physical(b.shape(x), layout).shape)
        source = b.input(x, layout)
        while axes:
            is_pair = len(axes) > 1 and axes[1].axis == axes[0].axis + 1
            done, axes = axes[: 1 + is_pair], axes[1 + is_pair :]
            resized = list(shape)
            for each in done:
                resized[each.axis] = each.size
            nbytes = math.prod(resized) * item_size(x.element_type, layout)
            target = b.temporary(nbytes) if axes else b.output(y, layout)
            _resize_step(spec, b, source, target, shape, done)
            source, shape = target, resized


def _resize_step(
    spec: ResizeSpec, b: SegmentBuilder, source: int, target: int, shape: Sequence[int], axes: Sequence[ResizedAxis]
) -> None:
    """Resize one axis of a buffer, or two neighbours."""
    columns, is_pair = axes[-1], len(axes) == 2
    is_empty = 0 in shape or 0 in (each.size for each in axes)
    tables = [_NOTHING, _NOTHING] if is_empty else [axes[0].taps if is_pair else _WHOLE, columns.taps]
    taps = max(each.indices.shape[1] for each in tables)
    attributes: dict[str, Any] = {
        "maps": math.prod(shape[: axes[0].axis]),
        "in": [axes[0].length if is_pair else 1, columns.length],
        "out": [len(each.indices) for each in tables],
        "inner": math.prod(shape[columns.axis + 1 :]),
        "row_indices": _flat(tables[0].indices, taps, "edge"),
        "column_indices": _flat(tables[1].indices, taps, "edge"),
    }
    x, outside = spec.node.input_value(0), np.float32(spec.extrapolation_value)
    if spec.mode == "nearest":
        attributes["element_bytes"] = item_size(x.element_type, b.option(spec.node).inputs[0])
        attributes["value"] = value_bits(outside.astype(x.element_type.numpy))
    else:
        attributes["taps"] = taps
        attributes["row_weights"] = _flat(tables[0].weights, taps, "constant")
        attributes["column_weights"] = _flat(tables[1].weights, taps, "constant")
        attributes["outside"] = float(outside)
    b.step(spec.node, "resize_nearest" if spec.mode == "nearest" else "resize_f32", [source], [target], **attributes)


def _flat(values: np.ndarray[Any, Any], taps: int, mode: Literal["edge", "constant"]) -> list[Any]:
    """A table of [size, taps] as a list; taps that are missing repeat the last index, with a weight of 0."""
    missing = taps - values.shape[1]
    whole = np.pad(values, ((0, 0), (0, missing)), mode) if missing and len(values) else values
    result: list[Any] = whole.reshape(-1).tolist()
    return result
