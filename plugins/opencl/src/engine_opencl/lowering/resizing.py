"""Resize: along one axis after the other, by tables of indices and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause, check_constant
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS, STORED, moved_scalar, stored_type
from engine_opencl.lowering.emptiness import require_elements
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer, PlanBuilder
from engine_opencl.source import element_access, kernel_source

_RADIUS: Final = {"linear": 1, "cubic": 2}
_NEAREST: Final[dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_COORDINATES: Final = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis that changes: its lengths, the scale between them, and the region that is read, of 1."""

    axis: int
    length: int
    size: int
    scale: float
    region: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Taps:
    """What each element of the result is made of, [size, taps]; an index of -1 stands for the value outside."""

    indices: NDArray[np.int32]
    weights: NDArray[np.float32]


@lowers("Resize")
class ResizeLowering(OpLowering[OperatorSpec]):
    """Nearest of any element type, linear and cubic in f32, also with antialiasing; scales or sizes are known."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        mode, coordinates = attribute(node, "mode"), attribute(node, "coordinate_transformation_mode")
        types = (
            check_types((node.input_value(0),), STORED) if mode == "nearest" else check_types((node.input_value(0),))
        )
        if refused := types or check_constant(node, 1, 2, 3):
            return refused
        if mode not in ("nearest", *_RADIUS):
            return Refusal(RefusalCause.ATTRIBUTE, f"mode is {mode!r}; expected nearest, linear or cubic")
        if coordinates not in _COORDINATES:
            return Refusal(RefusalCause.ATTRIBUTE, f"coordinate_transformation_mode is {coordinates!r}")
        if mode == "nearest" and attribute(node, "nearest_mode") not in _NEAREST:
            return Refusal(RefusalCause.ATTRIBUTE, f"nearest_mode is {attribute(node, 'nearest_mode')!r}")
        if mode == "nearest" and attribute(node, "exclude_outside"):
            return Refusal(RefusalCause.ATTRIBUTE, "exclude_outside is set; the nearest element has no weights")
        return None

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        axes = _resized_axes(node, b)
        if not axes:
            b.alias(y, x)
            return
        require_elements(node, b, [axis.length for axis in axes], "an interpolation")
        shape, source = list(b.shape(x)), b.input(x)
        for position, axis in enumerate(axes):
            shape[axis.axis] = axis.size
            is_last = position == len(axes) - 1
            nbytes = math.prod(shape) * stored_type(x).itemsize
            target = b.output(y) if is_last else b.temporary(nbytes)
            _resize_axis(node, b, axis, source, target, shape)
            source = target


def _resize_axis(node: Node, b: PlanBuilder, axis: _Axis, source: Buffer, target: Buffer, shape: Sequence[int]) -> None:
    """Resize along one axis, after which the shape is `shape`."""
    if 0 in shape:
        return
    is_nearest = attribute(node, "mode") == "nearest"
    taps = _nearest_taps(node, axis) if is_nearest else _weighted_taps(node, axis)
    inner, outer = math.prod(shape[axis.axis + 1 :]), math.prod(shape[: axis.axis])
    text = element_access(node.input_value(0).element_type) + kernel_source(
        "resize",
        LENGTH=axis.length, SIZE=axis.size, INNER=inner,
        TAPS=taps.indices.shape[1], NEAREST=int(is_nearest),
    )  # fmt: skip
    element_type, outside = node.input_value(0).element_type, attribute(node, "extrapolation_value")
    typed = np.float32(outside) if element_type in FLOATS else moved_scalar(element_type, outside)
    buffers = [source, table(b, taps.indices), table(b, taps.weights), target]
    b.launch(text, "resize", [*buffers, typed], (inner, axis.size, outer))


def _nearest_taps(node: Node, axis: _Axis) -> _Taps:
    x = _coordinates(node, axis)
    chosen = np.clip(_NEAREST[attribute(node, "nearest_mode")](x), 0, axis.length - 1)
    indices = np.where(_is_outside(node, axis, x), -1, chosen).astype(np.int32)
    return _Taps(indices[:, None], np.ones((axis.size, 1), np.float32))


def _weighted_taps(node: Node, axis: _Axis) -> _Taps:
    """Weights by distance; a window that shrinks reads as many more elements where antialias is set."""
    mode, is_smoothed = attribute(node, "mode"), bool(attribute(node, "antialias"))
    x = _coordinates(node, axis)
    scale = min(axis.scale, 1.0) if is_smoothed else 1.0
    start = math.floor(-_RADIUS[mode] / scale) + 1
    # Of a coordinate that is whole the element itself is the right one of the two in the middle.
    base = np.ceil(x) - 1
    offsets = np.arange(start, 2 - start)
    indices = base[:, None] + offsets
    distance = np.abs(offsets - (x - base)[:, None]) * scale
    weights = np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, attribute(node, "cubic_coeff_a"))
    if attribute(node, "exclude_outside"):
        weights = np.where((indices < 0) | (indices >= axis.length), 0.0, weights)
    if is_smoothed or attribute(node, "exclude_outside"):
        weights = weights / weights.sum(axis=1, keepdims=True)
    kept = np.clip(indices, 0, axis.length - 1)
    kept = np.where(_is_outside(node, axis, x)[:, None], -1, kept)
    return _Taps(kept.astype(np.int32), weights.astype(np.float32))


def _cubic(distance: NDArray[np.float64], a: float) -> NDArray[Any]:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _coordinates(node: Node, axis: _Axis) -> NDArray[np.float64]:
    """Where each element of the result lies in the input (ONNX Resize-19)."""
    y, n = np.arange(axis.size, dtype=np.float64), axis.length
    width = axis.scale * n
    mode = attribute(node, "coordinate_transformation_mode")
    first, last = axis.region
    if mode == "align_corners":
        return np.zeros(axis.size) if width == 1 else y * (n - 1) / (width - 1)
    if mode == "asymmetric":
        return y / axis.scale
    if mode == "tf_crop_and_resize":
        if width == 1:
            return np.full(axis.size, (first + last) * (n - 1) / 2)
        return y * (last - first) * (n - 1) / (width - 1) + first * (n - 1)
    if mode == "pytorch_half_pixel" and axis.size == 1:
        return np.zeros(1)
    offset = n / 2 * (1 - axis.size / width) if mode == "half_pixel_symmetric" else 0.0
    return offset + (y + 0.5) / axis.scale - 0.5


def _is_outside(node: Node, axis: _Axis, x: NDArray[np.float64]) -> NDArray[np.bool_]:
    if attribute(node, "coordinate_transformation_mode") != "tf_crop_and_resize":
        return np.zeros(x.shape, dtype=bool)
    return (x < 0) | (x > axis.length - 1)


def _resized_axes(node: Node, b: PlanBuilder) -> list[_Axis]:
    """The axes that change, those that shrink most first, so that less is computed."""
    shape, sizes = b.shape(node.input_value(0)), b.shape(node.output(0))
    rank = len(shape)
    axes = [axis % rank for axis in attribute(node, "axes") or range(rank)]
    scales = _scales(node, b, axes)
    region = [0.0] * len(axes) + [1.0] * len(axes)
    is_cropped = attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    if is_cropped and node.has_input(1) and (given := _known(node, b, 1)).size:
        region = given.astype(np.float64).tolist()
    changed = []
    for index, axis in enumerate(axes):
        ends = (region[index], region[len(axes) + index])
        if shape[axis] != sizes[axis] or not math.isclose(scales[index], 1.0) or ends != (0.0, 1.0):
            changed.append(_Axis(axis, shape[axis], sizes[axis], scales[index], ends))
    return sorted(changed, key=lambda each: each.scale)


def _scales(node: Node, b: PlanBuilder, axes: Sequence[int]) -> list[float]:
    if node.has_input(2) and (given := _known(node, b, 2)).size:
        return [float(scale) for scale in given]
    shape = b.shape(node.input_value(0))
    sizes = _known(node, b, 3).reshape(-1).tolist()
    ratios = [size / shape[axis] if shape[axis] else 1.0 for size, axis in zip(sizes, axes, strict=True)]
    policy = attribute(node, "keep_aspect_ratio_policy")
    if policy == "stretch":
        return ratios
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)


def _known(node: Node, b: PlanBuilder, index: int) -> NDArray[Any]:
    data = b.constant(node.input_value(index))
    assert data is not None
    return data
