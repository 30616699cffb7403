// The epilogue of 8-bit integer products: the sum itself, or (QUANTIZED) the sum times `factor`, rounded, plus the zero
// point, saturated. Sums are exact modulo 2^32, and rounded to f32 before they are scaled; NaN is the zero point.
#if QUANTIZED
inline int code_of_sum(float scaled, float point) {
  return (int)clamp((isnan(scaled) ? 0.0f : rint(scaled)) + point, LOW, HIGH);
}
#define STORE_SUM(at, sum, factor, point) y[at] = code_of_sum((float)(sum) * (factor), (float)(point))
#else
#define STORE_SUM(at, sum, factor, point) y[at] = (sum)
#endif
