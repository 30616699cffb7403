"""Cases of Softmax, LogSoftmax and Hardmax: axes, long rows, non-finite values, empty tensors."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import f16, f32, f64
from engine.ops.cases.case import case
from engine.ops.cases.data import filled, limits, real

CASES: Final = [
    *(
        case(f"{op_type}/{'x'.join(map(str, shape))}-axis={axis}", [real(*shape, low=-9, high=9)], {"axis": axis},
             terms=1 if op_type == "Hardmax" else shape[axis] + 8)
        for op_type in ("Softmax", "LogSoftmax", "Hardmax")
        for shape, axis in (((5, 7), -1), ((5, 7), 0), ((3, 40, 6), 1), ((2, 5000), 1), ((4, 1), 1), ((3, 2, 100), -1))
    ),
    *(case(f"Softmax/{type.name}", [real(6, 40, type=type)], terms=48) for type in (f64, f16)),
    *(case(f"{op}/edges", [filled((2, 7), limits(f32))], terms=7) for op in ("Softmax", "LogSoftmax")),
    *(case(f"{op}/no-rows", [real(0, 3)]) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    case("Softmax/dynamic", [real(5, 7)], terms=15, is_dynamic=True),
]  # fmt: skip
