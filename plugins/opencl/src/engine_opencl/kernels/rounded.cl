// Products and quotients rounded to nearest, as other devices compute them: a compiler may contract a product with a
// sum, and a quotient of OpenCL may be 2.5 ulp from the right one. For values that decide numbers of samples, or
// comparisons.
inline float product(float a, float b) { return fma(a, b, 0.0f); }

inline float quotient(float a, float b) {
  const float inverse = 1.0f / b;
  float q = a / b;
  q = isfinite(q) ? fma(fma(-q, b, a), inverse, q) : q;
  return isfinite(q) ? fma(fma(-q, b, a), inverse, q) : q;
}
