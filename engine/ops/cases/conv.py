"""Cases of convolutions: dimensions, groups, strides, dilations, every padding, few and many channels,
moved windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from engine.ir.element_type import f16, f64, i8, u8
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import constant, real, whole


def _conv(
    what: str, x: Sequence[int], w: Sequence[int], *, bias: bool = True, fixed: bool = True, **attributes: Any
) -> OperatorCase:
    is_transposed = what.startswith("ConvTranspose")
    outputs = w[1] * attributes.get("group", 1) if is_transposed else w[0]
    weights, shift = real(*w), real(outputs)
    inputs = [real(*x), constant(weights) if fixed else weights]
    if bias:
        inputs.append(constant(shift) if fixed else shift)
    terms = math.prod(w[1:]) if not is_transposed else math.prod((w[0], *w[2:]))
    # Winograd's algorithm for 3x3 adds multiples of the inputs: its rounding errors are a few times as large
    # (Lavin and Gray, Fast algorithms for convolutional neural networks, 2016; F(4x4, 3x3)).
    is_fast = tuple(w[2:]) == (3, 3) and "strides" not in attributes
    return case(what, inputs, attributes, terms=(terms + 1) * (4 if is_fast else 1), factors=(0, 1))


def _deformed(
    what: str,
    x: Sequence[int],
    w: Sequence[int],
    outputs: Sequence[int],
    *,
    mask: bool = False,
    bias: bool = True,
    **attributes: Any,
) -> OperatorCase:
    """Offsets of up to two pixels, so that some places are beyond the image."""
    moved = attributes.get("offset_group", 1) * math.prod(w[2:])
    inputs = [real(*x), constant(real(*w)), real(x[0], 2 * moved, *outputs), constant(real(w[0])) if bias else None]
    if mask:
        inputs.append(real(x[0], moved, *outputs))
    # An element is a sum of four products with weights of up to four roundings.
    factors = (0, 1, 4) if mask else (0, 1)
    return case(f"DeformConv/{what}", inputs, attributes, terms=4 * (math.prod(w[1:]) + 1), factors=factors)


def _padded(op_type: str) -> list[OperatorCase]:
    """SAME and VALID, including kernels smaller than the stride."""
    return [
        _conv(f"{op_type}/{auto_pad}-kernel={kernel}-stride={stride}", (1, 3, 9, 8),
              (3, 2, kernel, kernel) if op_type == "ConvTranspose" else (2, 3, kernel, kernel),
              auto_pad=auto_pad, strides=[stride, stride])
        for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for kernel in (1, 3, 4)
        for stride in (1, 2)
    ]  # fmt: skip


CASES: Final = [
    _conv("Conv/1x1", (2, 40, 9, 7), (24, 40, 1, 1)),
    _conv("Conv/1x1-strided", (1, 40, 9, 7), (24, 40, 1, 1), strides=[2, 2]),
    _conv("Conv/3x3", (1, 16, 14, 13), (32, 16, 3, 3), pads=[1, 1, 1, 1]),
    _conv("Conv/3x3-many-channels", (1, 64, 28, 28), (64, 64, 3, 3), pads=[1, 1, 1, 1]),
    _conv("Conv/3x3-odd-channels", (2, 19, 14, 13), (21, 19, 3, 3), pads=[1, 1, 1, 1], bias=False),
    _conv("Conv/stem", (1, 3, 33, 31), (24, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
    _conv("Conv/5x3-asymmetric", (1, 8, 15, 12), (9, 8, 5, 3), strides=[2, 1], pads=[0, 2, 3, 1], dilations=[1, 2]),
    _conv("Conv/dilated", (1, 16, 15, 16), (16, 16, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    _conv("Conv/depthwise", (1, 24, 12, 13), (24, 1, 3, 3), group=24, pads=[1, 1, 1, 1]),
    _conv("Conv/depthwise-strided", (2, 35, 13, 12), (35, 1, 5, 5), group=35, strides=[2, 2], pads=[2, 2, 2, 2]),
    _conv("Conv/multiplier", (1, 6, 9, 9), (12, 1, 3, 3), group=6),
    _conv("Conv/grouped", (1, 32, 10, 10), (64, 8, 3, 3), group=4, pads=[1, 1, 1, 1]),
    _conv("Conv/grouped-blocks", (1, 64, 9, 9), (64, 32, 1, 1), group=2),
    _conv("Conv/one-dimension", (2, 12, 50), (20, 12, 5), strides=[2], pads=[2, 1]),
    _conv("Conv/one-dimension-depthwise", (1, 20, 50), (20, 1, 4), group=20, dilations=[3]),
    _conv("Conv/three-dimensions", (1, 4, 6, 7, 5), (6, 4, 3, 3, 2), strides=[1, 2, 1], pads=[1, 0, 1, 1, 1, 0]),
    _conv("Conv/computed-weights", (1, 16, 9, 9), (24, 16, 3, 3), fixed=False),
    _conv("Conv/one-pixel", (1, 32, 1, 1), (48, 32, 1, 1)),
    _conv("Conv/no-batch", (0, 3, 8, 8), (4, 3, 3, 3)),
    *_padded("Conv"),
    _conv("ConvTranspose/2x2", (1, 16, 7, 6), (16, 8, 2, 2), strides=[2, 2]),
    _conv("ConvTranspose/overlapping", (1, 20, 7, 6), (20, 9, 4, 3), strides=[2, 1], pads=[1, 0, 1, 2]),
    _conv("ConvTranspose/output-padding", (1, 6, 5, 4), (6, 5, 3, 3), strides=[3, 2], output_padding=[2, 1]),
    _conv("ConvTranspose/output-shape", (1, 6, 5, 4), (6, 5, 3, 3), strides=[2, 2], output_shape=[10, 8]),
    _conv("ConvTranspose/output-shape-beyond", (1, 6, 3, 4), (6, 5, 2, 3), strides=[2, 3], output_shape=[9, 17]),
    _conv("ConvTranspose/grouped", (2, 12, 5, 6), (12, 3, 3, 3), strides=[2, 2], group=4, dilations=[1, 2]),
    _conv("ConvTranspose/one-dimension", (1, 8, 20), (8, 6, 5), strides=[3]),
    *_padded("ConvTranspose"),
    _deformed("3x3", (1, 16, 9, 8), (24, 16, 3, 3), (9, 8), pads=[1, 1, 1, 1]),
    _deformed("modulated", (2, 40, 7, 8), (20, 40, 3, 3), (7, 8), mask=True, pads=[1, 1, 1, 1]),
    _deformed("strided", (2, 6, 11, 9), (5, 6, 3, 2), (5, 8), strides=[2, 1], pads=[1, 0, 0, 0]),
    _deformed("dilated", (1, 6, 11, 9), (5, 6, 3, 2), (11, 8), dilations=[2, 3], pads=[2, 1, 2, 1], bias=False),
    _deformed("grouped", (2, 12, 6, 7), (8, 6, 3, 3), (4, 5), group=2, offset_group=3, mask=True),
    _deformed("depthwise", (1, 8, 6, 7), (8, 1, 3, 3), (6, 7), group=8, offset_group=4, pads=[1, 1, 1, 1]),
    _deformed("pointwise", (2, 33, 5, 6), (4, 33, 1, 1), (5, 6), mask=True, bias=False),
    *(
        case(f"Conv/{type.name}", [real(1, 6, 9, 9, type=type), constant(real(5, 6, 3, 3, type=type))], terms=54,
             factors=(0, 1))
        for type in (f64, f16)
    ),
    *(
        case(f"ConvInteger/{type.name}", [whole(1, 5, 9, 8, type=type), constant(whole(6, 5, 3, 3, type=i8)),
             constant(7, type), constant(2, i8)], {"pads": [1, 0, 1, 2], "strides": [1, 2]})
        for type in (u8, i8)
    ),
]  # fmt: skip
