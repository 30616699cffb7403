"""Resize of any axes: along two neighbouring ones in one step, along more of them two at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause, check_constant, check_types, first_refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption, item_size
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.padding import value_bits
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import check_movable, is_map, physical

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_COORDINATES: Final = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip
_NEAREST: Final = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_TAPS: Final = {"linear": 2, "cubic": 4}


@lowers("Resize")
class ResizeLowering(OpLowering[OperatorSpec]):
    """Nearest of any element type, linear and cubic in f32; the region, scales and sizes are known."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        mode, coordinates = attribute(node, "mode"), attribute(node, "coordinate_transformation_mode")
        types = check_movable(node, node.input_value(0))
        if mode != "nearest":
            types = first_refusal(types, check_f32_data(node))
        if refused := first_refusal(types, check_constant(node, 1, 2, 3)):
            return refused
        if mode not in ("nearest", *_TAPS):
            return Refusal(RefusalCause.ATTRIBUTE, f"mode is {mode!r}; expected nearest, linear or cubic")
        if coordinates not in _COORDINATES:
            return Refusal(RefusalCause.ATTRIBUTE, f"coordinate_transformation_mode is {coordinates!r}")
        if mode == "nearest" and attribute(node, "nearest_mode") not in _NEAREST:
            return Refusal(RefusalCause.ATTRIBUTE, f"nearest_mode is {attribute(node, 'nearest_mode')!r}")
        if mode == "nearest" and attribute(node, "exclude_outside"):
            return Refusal(RefusalCause.ATTRIBUTE, "exclude_outside is set; the nearest element has no weights")
        if attribute(node, "antialias"):
            return Refusal(RefusalCause.ATTRIBUTE, "antialias is set; expected 0")
        return None

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        x, y = node.input_value(0), node.output(0)
        if not is_map(x) or x.shape[0] != y.shape[0] or x.shape[1] != y.shape[1]:
            return (plain,)
        inputs = (Layout.BLOCKED, *(Layout.PLAIN for _ in range(node.num_inputs - 1)))
        return (plain, LayoutOption(inputs, (Layout.BLOCKED,)))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        layout = b.option(node).inputs[0]
        axes = _resized_axes(node, b)
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
            _resize_step(node, b, source, target, shape, done)
            source, shape = target, resized


@dataclass(frozen=True, slots=True)
class _Axis:
    axis: int
    size: int
    scale: float
    region: tuple[float, float]


def check_f32_data(node: Node) -> Refusal | None:
    """A refusal unless the resized tensor is f32; the others are not read by kernels."""
    return check_types([node.input_value(0)], F32)


def _resized_axes(node: Node, b: SegmentBuilder) -> list[_Axis]:
    """The axes that change, ascending; scales and regions are as ONNX has them, in f64."""
    shape, sizes = b.shape(node.input_value(0)), b.shape(node.output(0))
    rank = len(shape)
    axes = [axis % rank for axis in attribute(node, "axes") or range(rank)]
    scales = _scales(node, b, axes)
    region = [0.0] * len(axes) + [1.0] * len(axes)
    is_cropped = attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    if is_cropped and node.has_input(1) and (given := b.value(node.input_value(1))).size:
        region = given.astype(np.float64).tolist()
    changed = []
    for index, axis in enumerate(axes):
        ends = (region[index], region[len(axes) + index])
        if shape[axis] != sizes[axis] or not math.isclose(scales[index], 1.0) or ends != (0.0, 1.0):
            changed.append(_Axis(axis, sizes[axis], scales[index], ends))
    return sorted(changed, key=lambda each: each.axis)


def _scales(node: Node, b: SegmentBuilder, axes: Sequence[int]) -> list[float]:
    if node.has_input(2) and (given := b.value(node.input_value(2))).size:
        return [float(scale) for scale in given]
    shape = b.shape(node.input_value(0))
    sizes = b.value(node.input_value(3)).reshape(-1).tolist()
    ratios = [size / shape[axis] if shape[axis] else 1.0 for size, axis in zip(sizes, axes, strict=True)]
    policy = attribute(node, "keep_aspect_ratio_policy")
    if policy == "stretch":
        return ratios
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)


def _resize_step(
    node: Node, b: SegmentBuilder, source: int, target: int, shape: Sequence[int], axes: Sequence[_Axis]
) -> None:
    """Resize one axis of a buffer, or two neighbours."""
    rows = axes[0] if len(axes) == 2 else _Axis(axes[0].axis, 1, 1.0, (0.0, 1.0))
    columns = axes[-1]
    mode = attribute(node, "mode")
    outside = np.float32(attribute(node, "extrapolation_value"))
    attributes: dict[str, Any] = {
        "maps": math.prod(shape[: rows.axis]),
        "in": [shape[rows.axis] if len(axes) == 2 else 1, shape[columns.axis]],
        "out": [rows.size, columns.size],
        "inner": math.prod(shape[columns.axis + 1 :]),
        "scales": [rows.scale, columns.scale],
        "roi": [rows.region[0], columns.region[0], rows.region[1], columns.region[1]],
        "coordinates": attribute(node, "coordinate_transformation_mode"),
    }
    x = node.input_value(0)
    if mode == "nearest":
        attributes["element_bytes"] = item_size(x.element_type, b.option(node).inputs[0])
        attributes["nearest"] = attribute(node, "nearest_mode")
        attributes["value"] = value_bits(outside.astype(x.element_type.numpy))
    else:
        attributes["taps"] = _TAPS[mode]
        attributes["cubic_a"] = float(attribute(node, "cubic_coeff_a"))
        attributes["exclude_outside"] = int(attribute(node, "exclude_outside"))
        attributes["outside"] = float(outside)
    b.step(node, "resize_nearest" if mode == "nearest" else "resize_f32", [source], [target], **attributes)
