// Numbers of floating-point types of 4 to 8 bits: a sign, an exponent with a bias, and a mantissa. Where
// f32 would be denormal, the arithmetic is on integers, since devices may flush denormal numbers.
#define NO_SPECIALS 0    // every code is a number
#define ONLY_NAN 1       // the largest magnitude is NaN
#define INFINITE 2       // as in IEEE 754
#define UNSIGNED_ZERO 3  // the code of -0 is NaN

inline float small_value(const uint code, const int exponent_bits, const int mantissa, const int bias,
                         const int specials) {
  const int size = exponent_bits + mantissa;
  const uint most = (1u << size) - 1, magnitude = code & most, sign = (code >> size & 1u) << 31;
  const uint exponent = magnitude >> mantissa, fraction = magnitude & ((1u << mantissa) - 1);
  const bool is_nan = specials == UNSIGNED_ZERO ? sign && !magnitude : specials == ONLY_NAN && magnitude == most;
  if (is_nan) return as_float(sign | 0x7fc00000u);
  if (specials == INFINITE && exponent == (1u << exponent_bits) - 1)
    return as_float(sign | 0x7f800000u | fraction << (23 - mantissa));
  const float place = as_float((uint)(128 - bias - mantissa) << 23);
  const float value = exponent ? as_float((exponent + 127 - bias) << 23 | fraction << (23 - mantissa)) : fraction * place;
  return as_float(as_uint(value) | sign);
}
// The code of the nearest number; of two equally near, the even one. Above the largest: the largest if SATURATES, else
// special.
inline uint small_code(const float x, const int exponent_bits, const int mantissa, const int bias, const int specials,
                       const int saturates) {
  const int size = exponent_bits + mantissa, dropped = 23 - mantissa;
  const uint most = (1u << size) - 1, bits = as_uint(x), magnitude = bits & 0x7fffffffu, sign = bits >> 31 << size;
  const uint infinity = ((1u << exponent_bits) - 1) << mantissa;
  const uint end = specials == INFINITE ? infinity : specials == ONLY_NAN ? most : most + 1;
  const bool has_nan = specials == ONLY_NAN || specials == INFINITE;
  if (magnitude > 0x7f800000u) return has_nan ? most | sign : most + 1;
  const float places = as_float(magnitude) * as_float((uint)(126 + bias + mantissa) << 23);
  const uint rounded = magnitude + (1u << (dropped - 1)) - 1 + (magnitude >> dropped & 1u);
  uint code = magnitude >= (uint)(128 - bias) << 23 ? (rounded - ((uint)(127 - bias) << 23)) >> dropped
                                                    : convert_uint_rte(places);
  if (code >= end) {
    if (specials == UNSIGNED_ZERO && !saturates) return most + 1;
    code = saturates || specials == NO_SPECIALS ? end - 1 : end;
  }
  return specials == UNSIGNED_ZERO && code == 0 ? 0 : code | sign;
}

// f8e8m0: powers of two, by the table of ONNX's Cast: magnitudes outside 2^-127 (which has the code 0) to 2^127 become
// the nearer end if the cast saturates, otherwise NaN. Ties round up. 2^-127 is subnormal in f32. `rounding`: 0 down, 1
// up, 2 to nearest.
inline float power_value(const uint code) {
  return as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}
inline uint power_code(const float x, const int rounding, const int saturates) {
  const uint magnitude = as_uint(x) & 0x7fffffffu, exponent = magnitude >> 23, fraction = magnitude & 0x7fffffu;
  if (magnitude > 0x7f800000u) return 255;
  if (magnitude < 0x400000u) return saturates ? 0 : 255;
  if (magnitude > 0x7f000000u) return saturates ? 254 : 255;
  const uint whole = exponent == 0 ? 0x400000u : 0, half_way = exponent == 0 ? 0x600000u : 0x400000u;
  return exponent + (rounding == 1 ? fraction > whole : rounding == 2 && fraction >= half_way);
}
