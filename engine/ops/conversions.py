"""Evaluation of Cast and CastLike: the cases that ONNX leaves undefined, and those in which its reference contradicts
the text.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Node
from engine.ir.element_type import f8e8m0, string
from engine.ops.elementwise import CastSpec, ConversionSpec
from engine.ops.precision import rounded_to_odd, truncated
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, compiles
from engine.ops.tensors import Array

_SMALLEST: Final = 0x400000  # 2^-127 as f32, which is subnormal
_LARGEST: Final = 0x7F000000  # 2^127
_INFINITE: Final = 0x7F800000


@compiles("Cast", "CastLike")
def _compile_cast(node: Node) -> Evaluator:
    spec = ConversionSpec.of(node)
    target = spec.to if isinstance(spec, CastSpec) else node.output(0).element_type
    source = node.input_value(0).element_type
    if source is target:
        return lambda inputs: (inputs[0],)
    if target is f8e8m0 and source is not string:
        return lambda inputs: (powers_of_two(inputs[0], spec.round_mode, saturates=spec.saturate),)
    if source.is_real and target.is_integral:
        return lambda inputs: (truncated(inputs[0], target.numpy),)
    if source.numpy.isbuiltin == 1 and target.numpy.isbuiltin == 1 and string not in (source, target):
        return lambda inputs: (inputs[0].astype(target.numpy),)
    run = compile_onnx(node)
    if target is string:
        return run
    if target.is_real and target.numpy.isbuiltin != 1:
        exact = np.dtype(np.float64) if source is string else np.dtype(source.numpy)
        return lambda inputs: run([_one_nan(rounded_to_odd(inputs[0].astype(exact, copy=False))), *inputs[1:]])
    if source.numpy.isbuiltin == 1:
        return run
    return lambda inputs: run([_widened(inputs[0]), *inputs[1:]])


def _widened(x: Array) -> Array:
    """Numbers in a type of numpy's own: ml_dtypes does not convert all pairs of its types."""
    return _one_nan(x if x.dtype.isbuiltin == 1 else x.astype(np.float32))


def _one_nan(x: Array) -> Array:
    """All NaNs are treated alike, because float4e2m1, which has no NaN, gives them the opposite sign there."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x)


def powers_of_two(x: Array, round_mode: str, *, saturates: bool) -> Array:
    """Numbers as f8e8m0, by the table of ONNX's Cast-25; the sign is ignored.

    Magnitudes outside 2^-127 (which has the code 0) to 2^127 become the nearer end if `saturates`, otherwise NaN. `up`
    is away from zero, `down` towards it; ties of `nearest` are rounded up.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(np.shape(x))
    magnitude = (bits & 0x7FFFFFFF).astype(np.int64)
    exponent, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    whole, half = np.where(exponent == 0, _SMALLEST, 0), np.where(exponent == 0, 0x600000, 0x400000)
    more = {"up": fraction > whole, "nearest": fraction >= half, "down": np.zeros(fraction.shape, bool)}[round_mode]
    code = exponent + more
    code = np.where(magnitude < _SMALLEST, 0 if saturates else 255, code)
    code = np.where(magnitude > _LARGEST, 254 if saturates else 255, code)
    code = np.where(magnitude > _INFINITE, 255, code)
    result: Array = code.astype(np.uint8).view(f8e8m0.numpy)
    return result
