"""Cases of pooling: windows, paddings, partial windows, whole maps, indices."""

from __future__ import annotations

import math
from typing import Any, Final

from engine.ir.element_type import f16, f64, i8, i64, u8
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import constant, real, whole

_WINDOWS: Final[dict[str, dict[str, Any]]] = {
    "2x2": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "3x3-padded": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "uneven": {"kernel_shape": [3, 2], "strides": [1, 3], "pads": [2, 0, 1, 1]},
    "dilated": {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [1, 1, 0, 2]},
    "ceil": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "ceil-padded": {"kernel_shape": [3, 2], "strides": [3, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1},
    "SAME_UPPER": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "SAME_LOWER": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    "VALID": {"kernel_shape": [3, 3], "strides": [2, 1], "auto_pad": "VALID"},
}


def _pool(op_type: str, name: str, attributes: dict[str, Any], *shape: int) -> OperatorCase:
    terms = 1 if op_type == "MaxPool" else math.prod(attributes["kernel_shape"])
    return case(f"{op_type}/{name}", [real(*shape)], attributes, terms=terms, factors=(0,) if terms > 1 else ())


CASES: Final = [
    *(_pool(op, name, window, 2, 19, 12, 11) for op in ("MaxPool", "AveragePool") for name, window in _WINDOWS.items()),
    *(
        _pool("AveragePool", f"{name}-with-padding", {**window, "count_include_pad": 1}, 1, 16, 12, 11)
        for name, window in _WINDOWS.items()
    ),
    *(_pool("LpPool", f"{name}-p={p}", {**window, "p": p}, 1, 3, 12, 11)
      for name, window in _WINDOWS.items() for p in (1, 2, 3)),
    _pool("MaxPool", "one-dimension", {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}, 2, 5, 30),
    _pool("AveragePool", "one-dimension", {"kernel_shape": [4], "strides": [3], "pads": [1, 2]}, 2, 5, 30),
    _pool("MaxPool", "three-dimensions", {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2]}, 1, 3, 6, 7, 5),
    _pool("AveragePool", "three-dimensions", {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2]}, 1, 3, 6, 7, 5),
    _pool("AveragePool", "window-beyond-the-input", {
        "kernel_shape": [2, 4], "strides": [3, 1], "dilations": [2, 1], "auto_pad": "VALID", "ceil_mode": 1,
        "count_include_pad": 1,
    }, 1, 1, 8, 4),
    *(
        case(f"MaxPool/indices-{data.type.name}-order={order}", [data],
             {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 0, 1], "storage_order": order}, num_outputs=2)
        for data in (real(2, 3, 6, 5), whole(2, 3, 6, 5, type=u8, high=4), whole(2, 3, 6, 5, type=i8, low=0, high=4))
        for order in (0, 1)
    ),
    *(case(f"MaxPool/{type.name}", [real(1, 5, 9, 9, type=type)], {"kernel_shape": [3, 3]}) for type in (f64, f16)),
    *(
        case(f"{op_type}/{'x'.join(map(str, shape))}", [real(*shape)], terms=math.prod(shape[2:]), factors=(0,))
        for op_type in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
        for shape in ((2, 19, 7, 9), (1, 32, 14, 14), (1, 5, 40), (1, 3, 4, 5, 6))
    ),
    *(
        case(f"{op_type}/f64-{len(shape) - 2}", [real(*shape, type=f64)], terms=math.prod(shape[2:]), factors=(0,))
        for op_type in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
        for shape in ((2, 5, 7, 9), (1, 3, 4, 5, 6))
    ),
    *(case(f"GlobalLpPool/p={p}", [real(2, 5, 7, 9)], {"p": p}, terms=63, factors=(0,)) for p in (1, 3)),
    case("MaxUnpool/2x2", [real(1, 2, 3, 2), whole(1, 2, 3, 2, low=0, high=48)],
         {"kernel_shape": [2, 2], "strides": [2, 2]}),
    *(
        case(f"MaxUnpool/output-shape-{'x'.join(map(str, shape))}",
             [real(2, 3, 2, 2), whole(2, 3, 2, 2, low=0, high=math.prod(shape)), constant(shape, i64)],
             {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 0, 1]})
        for shape in ((2, 3, 5, 7), (2, 3, 3, 3))
    ),
]  # fmt: skip
