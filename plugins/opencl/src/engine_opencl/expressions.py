"""Expressions over elements of tensors, and the functions of OpenCL C that they call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.ir import Output
from engine_opencl.plan import Buffer


@dataclass(frozen=True, slots=True)
class Leaf:
    """The element of a tensor at the current position, broadcast."""

    value: Output


@dataclass(frozen=True, slots=True)
class Operation:
    """OpenCL C code with operands {0}, {1} ..., which it may use several times, and the type of its value."""

    code: str
    operands: tuple[Expression, ...]
    type: str = "float"


@dataclass(frozen=True, slots=True)
class Computed:
    """A subexpression computed by an earlier kernel, for every element of the result."""

    buffer: Buffer
    type: str


Expression: TypeAlias = "Leaf | Computed | Operation"
Read: TypeAlias = "Leaf | Computed"

HELPERS: Final = """
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }
inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float clip(float x, float a, float b) { return isnan(x) ? x : fmin(fmax(x, a), b); }
inline float larger(float a, float b) { return isnan(a) ? a : (isnan(b) ? b : fmax(a, b)); }
inline float smaller(float a, float b) { return isnan(a) ? a : (isnan(b) ? b : fmin(a, b)); }
inline float quotient_float(float a, float b) { return a / b; }
inline int quotient_int(int a, int b) { return b == 0 ? 0 : (b == -1 ? (int)(0u - (uint)a) : a / b); }
inline long quotient_long(long a, long b) { return b == 0 ? 0 : (b == -1 ? (long)(0ul - (ulong)a) : a / b); }
inline uchar quotient_uchar(uchar a, uchar b) { return b == 0 ? 0 : a / b; }
inline char quotient_char(char a, char b) { return b == 0 ? 0 : a / b; }
inline long remainder_of(long a, long b) { return b == 0 || b == -1 ? 0 : a % b; }
inline long modulo(long a, long b) {
  const long r = remainder_of(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
inline long power(long x, long n) {
  if (n < 0) return x == 1 || x == -1 ? (n & 1 ? x : 1) : 0;
  ulong product = 1, factor = (ulong)x;
  for (; n; n >>= 1, factor *= factor) product *= n & 1 ? factor : 1;
  return (long)product;
}
inline long real_power(long x, float y) {
  if (rint(y) == y && fabs(y) < 1e9f) return power(x, (long)y);
  const float value = pow((float)x, y), whole = rint(value);
  return (long)(fabs(value - whole) <= 2e-6f * fabs(whole) ? whole : value);
}
inline float floor_remainder(float a, float b) {
  const float r = fmod(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : (r == 0.0f ? copysign(0.0f, b) : r);
}
inline long shifted_left(long x, long n) { return n < 0 || n > 63 ? 0 : (long)((ulong)x << n); }
inline long shifted_right(long x, long n) { return n < 0 || n > 63 ? (x < 0 ? -1 : 0) : x >> n; }
inline float rounded_to_half(float x) {
  ushort bits;
  vstore_half_rte(x, 0, (half*)&bits);
  return vload_half(0, (half*)&bits);
}
inline float magnitude_float(float x) { return fabs(x); }
inline int magnitude_int(int x) { return x < 0 ? -x : x; }
inline long magnitude_long(long x) { return x < 0 ? -x : x; }
inline uchar magnitude_uchar(uchar x) { return x; }
inline char magnitude_char(char x) { return x < 0 ? -x : x; }
"""
"""Maxima and limits propagate NaN, as in ONNX. Integer division by zero, which ONNX does not define, gives 0.
A power of reals may be off by 16 units in the last place, so a result that close to an integer is rounded to it."""
