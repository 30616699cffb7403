"""Expressions over elements of tensors, and the functions of OpenCL C that they call."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from engine.ir import Output
from engine.startup import dataclass
from engine_opencl.elements import INTEGERS, c_type
from engine_opencl.plan import Buffer
from engine_opencl.source import kernel_text


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

_REAL: Final = """
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }
inline float mul_add(float x, float y, float z) { return x * y + z; }
inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float swish(float x, float beta) { return x * sigmoid(beta * x); }
inline float mish(float x) { return x * tanh(x > 20.0f ? x : log1p(exp(x))); }
inline float gelu(float x) { return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f)); }
inline float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
inline float clip(float x, float a, float b) { return isnan(x) ? x : fmin(fmax(x, a), b); }
inline float hard_swish(float x) { return x * clip(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f); }
inline float larger(float a, float b) { return isnan(a) ? a : (isnan(b) ? b : fmax(a, b)); }
inline float smaller(float a, float b) { return isnan(a) ? a : (isnan(b) ? b : fmin(a, b)); }
inline float quotient_float(float a, float b) { return a / b; }
inline float magnitude_float(float x) { return fabs(x); }
inline float floor_remainder(float a, float b) {
  const float r = fmod(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : (r == 0.0f ? copysign(0.0f, b) : r);
}
"""
HELPERS: Final = f"""{_REAL}
inline ulong unsigned_power(ulong x, ulong n) {{
  ulong product = 1;
  for (; n; n >>= 1, x *= x) product *= n & 1 ? x : 1;
  return product;
}}
inline long power(long x, long n) {{
  if (n < 0) return x == 1 || x == -1 ? (n & 1 ? x : 1) : 0;
  return (long)unsigned_power((ulong)x, (ulong)n);
}}
inline long real_power(long x, float y) {{
  const float value = pow((float)x, y), whole = rint(value);
  if (isnan(value)) return 0;
  if (fabs(value) >= 9.3e18f) return convert_long_sat(value);
  if (rint(y) == y && fabs(y) < 1e9f) {{
    const long exact = power(x, (long)y);
    return (exact < 0) == (value < 0.0f) || exact == 0 ? exact : convert_long_sat(copysign(1e19f, value));
  }}
  return convert_long_sat(fabs(value - whole) <= 2e-6f * fabs(whole) ? whole : value);
}}
inline float rounded_to_half(float x) {{
  ushort bits;
  vstore_half_rte(x, 0, (half*)&bits);
  return vload_half(0, (half*)&bits);
}}
"""
"""Maxima and limits propagate NaN, as in ONNX. Integer division by zero, which ONNX does not define, gives 0.
A power of reals may be off by 16 units in the last place, so a result that close to an integer is rounded to it."""
_DOUBLE_NAMES: Final = re.compile(
    r"\b(relu|mul_add|sigmoid|swish|mish|gelu|gelu_tanh|hard_swish|clip|larger|smaller|floor_remainder|real_power)\("
)
_FLOAT_NUMBERS: Final = re.compile(r"(?<![\w.])(\d+\.\d+)f\b")


def for_type(code: str, type_: str) -> str:
    """Code on float, for `type_` if that is double: in it, constants and the functions of `HELPERS` are also double."""
    if type_ != "double":
        return code
    code = _DOUBLE_NAMES.sub(r"\1_double(", _FLOAT_NUMBERS.sub(r"\1", code))
    return re.sub(r"\bfloat\b", "double", code).replace("_float(", "_double(")


_DOUBLE: Final = for_type(_REAL, "double") + kernel_text("double")
_SIGNED: Final = """
inline T quotient_T(T a, T b) { return b == 0 ? 0 : (b == -1 ? (T)((uT)0 - (uT)a) : a / b); }
inline T remainder_T(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; }
inline T modulo_T(T a, T b) {
  const T r = remainder_T(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
inline T magnitude_T(T x) { return x < 0 ? (T)((uT)0 - (uT)x) : x; }
inline T left_T(T x, T n) { return n < 0 || n >= BITS ? 0 : (T)((uT)x << n); }
inline T right_T(T x, T n) { return n < 0 || n >= BITS ? (x < 0 ? -1 : 0) : x >> n; }
"""
_UNSIGNED: Final = """
inline T quotient_T(T a, T b) { return b == 0 ? 0 : a / b; }
inline T remainder_T(T a, T b) { return b == 0 ? 0 : a % b; }
inline T modulo_T(T a, T b) { return remainder_T(a, b); }
inline T magnitude_T(T x) { return x; }
inline T left_T(T x, T n) { return n >= BITS ? 0 : (T)(x << n); }
inline T right_T(T x, T n) { return n >= BITS ? 0 : x >> n; }
"""


def functions_for(code: str) -> str:
    """The functions that OpenCL C code calls for integers and double, whose names end in the type."""
    found = _DOUBLE if "double" in code else ""
    for element_type in sorted(INTEGERS, key=str):
        name = c_type(element_type)
        if f"_{name}(" in code:
            text = _SIGNED if element_type.is_signed else _UNSIGNED
            found += re.sub(r"\bBITS\b", str(element_type.bits), re.sub(r"(\b|_|(?<=\bu))T\b", rf"\g<1>{name}", text))
    return found
