"""Cases of Resize: every mode and coordinate transformation, sizes and scales, regions, several axes, element types."""

from __future__ import annotations

from typing import Any, Final

from engine.ir.element_type import f16, f32, i32, u8
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, real, whole

_COORDINATES: Final = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


def _resize(
    what: str, x: Data, *, scales: list[float] | None = None, sizes: list[int] | None = None,
    roi: list[float] | None = None, **attributes: Any,
) -> OperatorCase:  # fmt: skip
    is_nearest = attributes.get("mode", "nearest") == "nearest"
    inputs = [
        x,
        constant(roi, f32) if roi else None,
        constant(scales, f32) if scales else None,
        *([constant(sizes)] if sizes else []),
    ]
    # Weights are rounded to f32 before up to 4 x 4 terms of up to 1.6 each are added.
    return case(f"Resize/{what}", inputs, attributes, terms=1 if is_nearest else 40, factors=() if is_nearest else (0,))


CASES: Final = [
    *(
        _resize(f"{mode}-{coordinates}-{what}", real(1, 2, 8, 6), mode=mode,
                coordinate_transformation_mode=coordinates, scales=[1.0, 1.0, *scales],
                roi=[0, 0, 0.1, 0.2, 1, 1, 0.9, 1.3] if coordinates == "tf_crop_and_resize" else None,
                extrapolation_value=-7.5)
        for mode in ("nearest", "linear", "cubic")
        for coordinates in _COORDINATES
        for what, scales in (("up", (2.25, 1.5)), ("down", (0.625, 0.5)), ("fractional", (1.7, 0.35)))
    ),
    *(
        _resize(f"nearest-{rounding}", real(1, 1, 5, 8), nearest_mode=rounding, scales=[1.0, 1.0, 1.5, 0.75])
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    *(
        _resize(f"{mode}-{coordinates}-twice-{channels}", real(2, channels, 9, 7), mode=mode,
                scales=[1.0, 1.0, 2.0, 2.0], coordinate_transformation_mode=coordinates)
        for mode, coordinates in (("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"))
        for channels in (3, 16, 20)
    ),
    *(
        _resize(f"{mode}-sizes-{policy}", real(1, 2, 7, 5), mode=mode, sizes=[9, 4], axes=[2, 3],
                keep_aspect_ratio_policy=policy)
        for mode in ("nearest", "linear")
        for policy in ("stretch", "not_larger", "not_smaller")
    ),
    *(
        _resize(f"{mode}-antialias", real(1, 2, 13, 11), mode=mode, scales=[1.0, 1.0, 0.4, 0.7], antialias=1)
        for mode in ("linear", "cubic")
    ),
    *(
        _resize(f"{mode}-exclude-outside", real(1, 2, 7, 6), mode=mode, scales=[1.0, 1.0, 1.6, 0.6], exclude_outside=1)
        for mode in ("linear", "cubic")
    ),
    _resize("cubic-a", real(1, 2, 7, 6), mode="cubic", scales=[1.0, 1.0, 1.6, 2.0], cubic_coeff_a=-0.5),
    _resize("linear-negative-axes", real(2, 7, 6, 3), mode="linear", sizes=[4, 9], axes=[-2, 1]),
    _resize("linear-one-axis", real(2, 3, 20), mode="linear", scales=[1.0, 1.0, 1.85]),
    _resize("linear-three-axes", real(1, 2, 5, 4, 3), mode="linear", scales=[1.0, 1.0, 1.5, 2.0, 0.7]),
    _resize("linear-of-all-axes", real(3, 4, 5), mode="linear", sizes=[4, 3, 9]),
    _resize("linear-to-one", real(1, 1, 1, 3), mode="linear", scales=[1.0, 1.0, 1.0, 0.5],
            coordinate_transformation_mode="pytorch_half_pixel"),
    _resize("nearest-u8", whole(1, 3, 6, 5, type=u8), scales=[1.0, 1.0, 2.0, 3.0]),
    _resize("nearest-i32", whole(1, 3, 6, 5, type=i32), scales=[1.0, 1.0, 0.5, 1.2]),
    _resize("linear-f16", real(1, 2, 7, 6, type=f16), mode="linear", scales=[1.0, 1.0, 2.3, 0.7]),
    _resize("unchanged", real(1, 2, 7, 6), mode="linear", scales=[1.0, 1.0, 1.0, 1.0]),
]  # fmt: skip
