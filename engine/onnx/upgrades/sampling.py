"""Upgrades of operators that sample images: Upsample and Resize, GridSample, RoiAlign."""

from __future__ import annotations

from typing import Final

from engine.ir import Output
from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.emit import constant_value, emit, f32s, scalar_f32

# floor(t), t the coordinate of tf_half_pixel_for_nn, is round(h) of half_pixel's h = t - 0.5; so is each of these.
_TF_NEAREST: Final = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}
_GRID_MODES: Final = {"bilinear": "linear", "bicubic": "cubic"}


@upgrade("Upsample", since=1, to=7)
def _upsample_scales(call: OldCall) -> OldCall:
    """Images only, with one factor for the height and one for the width."""
    mode = call.text("mode", "nearest")
    scales = (1.0, 1.0, call.number("height_scale"), call.number("width_scale"))
    return call.at(
        7,
        drop=["height_scale", "width_scale"],
        mode="linear" if mode == "bilinear" else mode,
        scales=scales,
    )


@upgrade("Upsample", since=7, to=9)
def _upsample_scales_input(call: OldCall) -> OldCall:
    scales = call.attributes.get("scales")
    if not scales:
        call.invalid("attribute `scales` is missing")
    return call.at(9, drop=["scales"], inputs=[call.input(0), f32s(scales)])


@upgrade("Upsample", since=9, to=10)
def _upsample_successor(call: OldCall) -> OldCall:
    """Resize-10 does the same, and can also shrink."""
    return call.at(10, op_type="Resize")


@upgrade("Resize", since=10, to=11)
def _resize_coordinates(call: OldCall) -> Upgraded:
    """x_original was x_resized / scale, and the nearest pixel was its floor for enlarging, its ceil for shrinking."""
    x, scales = call.input(0), call.input(1)
    fixed = {"coordinate_transformation_mode": "asymmetric"}
    if call.text("mode", "nearest") != "nearest":
        return call.at(11, inputs=[x, None, scales], **fixed)
    known = constant_value(scales)
    if known is not None and (known >= 1).all():
        return call.at(11, inputs=[x, None, scales], nearest_mode="floor", **fixed)
    if known is not None and (known <= 1).all():
        return call.at(11, inputs=[x, None, scales], nearest_mode="ceil", **fixed)
    # Dimensions are independent: enlarge some first, then shrink the others.
    one = scalar_f32(1.0)
    grown = _nearest(x, emit("Max", scales, one), "floor")
    return [_nearest(grown, emit("Min", scales, one), "ceil")]


def _nearest(x: Output, scales: Output, nearest_mode: str) -> Output:
    return emit("Resize", x, None, scales, coordinate_transformation_mode="asymmetric", nearest_mode=nearest_mode)


@upgrade("Resize", since=11, to=13)
def _resize_optional_inputs(call: OldCall) -> OldCall:
    """Unused inputs were empty tensors; from 13 on they are omitted. tf_half_pixel_for_nn was removed."""
    attributes = dict(call.attributes)
    mode = call.text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_half_pixel_for_nn":
        attributes |= _as_half_pixel(call)
    roi = call.input(1) if mode == "tf_crop_and_resize" else None
    if call.has_input(3):
        return call.at(13, inputs=[call.input(0), roi, None, call.input(3)], **attributes)
    return call.at(13, inputs=[call.input(0), roi, call.input(2)], **attributes)


def _as_half_pixel(call: OldCall) -> dict[str, str]:
    mode, nearest_mode = call.text("mode", "nearest"), call.text("nearest_mode", "round_prefer_floor")
    if mode != "nearest" or nearest_mode not in _TF_NEAREST:
        call.unsupported(
            f"tf_half_pixel_for_nn with mode {mode} and nearest_mode {nearest_mode} has no equivalent since opset 13",
            f"use mode nearest with nearest_mode {' or '.join(_TF_NEAREST)}, or another coordinate_transformation_mode",
        )
    return {"coordinate_transformation_mode": "half_pixel", "nearest_mode": _TF_NEAREST[nearest_mode]}


@upgrade("GridSample", since=16, to=20)
def _grid_modes(call: OldCall) -> OldCall:
    """The modes were renamed, since they are no longer specific to two dimensions."""
    mode = call.text("mode", "bilinear")
    return call.at(20, mode=_GRID_MODES.get(mode, mode))


@upgrade("RoiAlign", since=10, to=16)
def _roi_coordinates(call: OldCall) -> OldCall:
    """There was no half-pixel shift; from 16 on it is the default."""
    return call.at(16, coordinate_transformation_mode="output_half_pixel")
