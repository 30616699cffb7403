"""Cases of sampling at computed coordinates: GridSample, AffineGrid, RoiAlign, CenterCropPad."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import i64
from engine.ops.cases.case import case
from engine.ops.cases.data import constant, filled, real

CASES: Final = [
    *(
        case(f"GridSample/{mode}-{padding}-align={align}", [real(2, 3, 7, 6), real(2, 5, 4, 2, low=-1.3, high=1.3)],
             {"mode": mode, "padding_mode": padding, "align_corners": align}, terms=64, factors=(0,))
        for mode in ("linear", "cubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    *(
        # The grid avoids midpoints between elements, where two correct results may use different neighbours.
        case(f"GridSample/nearest-{padding}-align={align}",
             [real(1, 3, 8, 8), filled((1, 3, 3, 2), (-0.9, -0.35, 0.1, 0.62, 0.88, -1.07, 1.16))],
             {"mode": "nearest", "padding_mode": padding, "align_corners": align})
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    *(
        case(f"AffineGrid/align={align}", [real(2, 2, 3), constant([2, 3, 5, 6])], {"align_corners": align}, terms=4,
             factors=(0,))
        for align in (0, 1)
    ),
    *(
        case(f"RoiAlign/{mode}-{transform}", [
            real(2, 3, 12, 11), filled((3, 4), (0.0, 1.0, 7.5, 8.0, 2.0, 2.0, 9.0, 6.5, 4.0, 0.5, 5.0, 9.0)),
            constant(filled((3,), (0, 1, 0), i64)),
        ], {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.9,
            "coordinate_transformation_mode": transform}, terms=32, factors=(0,))
        for mode in ("avg", "max")
        for transform in ("half_pixel", "output_half_pixel")
    ),
    *(
        # Several samples a cell, a part of a pixel, a region in reverse, one beyond the map.
        case(f"RoiAlign/{mode}-as-many-samples-as-pixels", [
            real(2, 35, 9, 8),
            filled((4, 4), (-2.0, -3.0, 16.5, 13.0, 2.0, 2.0, 2.5, 2.25, 9.0, 5.0, 3.0, 9.0, 99.0, 3.0, 120.0, 7.0)),
            constant(filled((4,), (1, 0, 1, 1), i64)),
        ], {"mode": mode, "output_height": 2, "output_width": 3, "spatial_scale": 0.7}, terms=256, factors=(0,))
        for mode in ("avg", "max")
    ),
    case("CenterCropPad/both", [real(3, 9, 8), constant([5, 12])], {"axes": [1, 2]}),
]  # fmt: skip
