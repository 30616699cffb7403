"""Evaluation of Cast and CastLike: what ONNX leaves undefined, and what its reference has against the text."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Node
from engine.ir.element_type import f8e8m0
from engine.ops.elementwise import CastSpec, ConversionSpec
from engine.ops.precision import truncated
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, compiles
from engine.ops.tensors import Array

_LEAST: Final = 0x400000  # 2^-127 as f32, which is subnormal
_LARGEST: Final = 0x7F000000  # 2^127
_INFINITE: Final = 0x7F800000


@compiles("Cast", "CastLike")
def _compile_cast(node: Node) -> Evaluator:
    spec = ConversionSpec.of(node)
    target = spec.to if isinstance(spec, CastSpec) else node.output(0).element_type
    source = node.input_value(0).element_type
    if not source.is_real or not (target.is_integral or target is f8e8m0):
        return compile_onnx(node)
    if target is f8e8m0 and source is not target:
        return lambda inputs: (powers_of_two(inputs[0], spec.round_mode, saturates=spec.saturate),)
    return lambda inputs: (truncated(inputs[0], target.numpy),) if source is not target else (inputs[0],)


def powers_of_two(x: Array, round_mode: str, *, saturates: bool) -> Array:
    """Numbers as f8e8m0, by the table of ONNX's Cast-25; the sign is ignored.

    What is not from 2^-127, which has the code 0, to 2^127 becomes the nearer end if `saturates`, else NaN. `up` is
    away from zero, `down` towards it; ties of `nearest` are rounded up.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(np.shape(x))
    magnitude = (bits & 0x7FFFFFFF).astype(np.int64)
    exponent, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    whole, half = np.where(exponent == 0, _LEAST, 0), np.where(exponent == 0, 0x600000, 0x400000)
    more = {"up": fraction > whole, "nearest": fraction >= half, "down": np.zeros(fraction.shape, bool)}[round_mode]
    code = exponent + more
    code = np.where(magnitude < _LEAST, 0 if saturates else 255, code)
    code = np.where(magnitude > _LARGEST, 254 if saturates else 255, code)
    code = np.where(magnitude > _INFINITE, 255, code)
    result: Array = code.astype(np.uint8).view(f8e8m0.numpy)
    return result
