// Numbers of bf16: the upper half of an f32. Numbers are rounded to nearest, ties to even; NaN stays NaN.
// defines: bfloat_value bfloat_code bfloat_value2 bfloat_code2 bfloat_value4 bfloat_code4
// defines: bfloat_value8 bfloat_code8 bfloat_value16 bfloat_code16
#define BFLOAT(n)                                                                                     \
  inline float##n bfloat_value##n(const ushort##n code) { return as_float##n(convert_uint##n(code) << 16); } \
  inline ushort##n bfloat_code##n(const float##n x) {                                                 \
    const uint##n bits = as_uint##n(x), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;         \
    return convert_ushort##n((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);      \
  }
BFLOAT()
BFLOAT(2)
BFLOAT(4)
BFLOAT(8)
BFLOAT(16)
inline float rounded_to_bfloat(const float x) { return bfloat_value(bfloat_code(x)); }
// Integers of more digits than f32 as bf16, rounded once: to odd first (see double.cl).
inline float bfloat_of_signed(const long x) {
  const float cut = convert_float_rtz(x);
  return rounded_to_bfloat(convert_long_rtz(cut) == x ? cut : as_float(as_uint(cut) | 1u));
}
inline float bfloat_of_unsigned(const ulong x) {
  const float cut = convert_float_rtz(x);
  return rounded_to_bfloat(convert_ulong_rtz(cut) == x ? cut : as_float(as_uint(cut) | 1u));
}
