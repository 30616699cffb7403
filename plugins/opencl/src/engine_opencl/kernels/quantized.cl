// Sums of products of 8-bit integers, four in a 32-bit word: X (u8 or i8) by weights of i8. All sums are exact.
#if defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
#if X_SIGNED
#define dot_of(x, w) dot_4x8packed_ss_int((x), (w))
#else
#define dot_of(x, w) dot_4x8packed_us_int((x), (w))
#endif
#else
inline int dot_of(uint x, uint w) {
#if X_SIGNED
  const int4 a = convert_int4(as_char4(x));
#else
  const int4 a = convert_int4(as_uchar4(x));
#endif
  const int4 b = convert_int4(as_char4(w));
  return a.s0 * b.s0 + a.s1 * b.s1 + a.s2 * b.s2 + a.s3 * b.s3;
}
#endif
#define ONES 0x01010101u

// The sum of (x - x_zero) * (w - w_zero), from the sums of x * w, of x, and of the weights.
#if W_POINT
#define CENTERED(sum, total, zero, channel) \
  ((sum) - (zero) * w_sum[channel] - w_zero[channel] * ((total) - (zero) * TERMS))
#else
#define CENTERED(sum, total, zero, channel) ((sum) - (zero) * w_sum[channel])
#endif

// A value of f32 as a code, from `LOW` to `HIGH` of its type; NaN is the zero point.
inline int code_of(float v, float scale, float point, float low, float high) {
  const float q = rint(v / scale);
  return (int)clamp((isnan(q) ? 0.0f : q) + point, low, high);
}
