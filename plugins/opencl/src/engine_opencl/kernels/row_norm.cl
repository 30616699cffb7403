// Layer normalization (MEAN) or RMS normalization of one row an item; the variance is of deviations, in a second pass.
__kernel void row_norm(__global const real* restrict x, __global const real* restrict scale,
#if SHIFT
                       __global const real* restrict shift,
#endif
                       __global real* restrict y, const float epsilon) {
  const ulong first = get_global_id(0) * (ulong)LENGTH;
  float mean = 0.0f;
#if MEAN
  for (int k = 0; k < LENGTH; ++k) mean += load_real(x, first + k);
  mean /= LENGTH;
#endif
  float squares = 0.0f;
  for (int k = 0; k < LENGTH; ++k) {
    const float d = load_real(x, first + k) - mean;
    squares += d * d;
  }
  const float factor = 1.0f / sqrt(squares / LENGTH + epsilon);
  for (int k = 0; k < LENGTH; ++k) {
    float v = (load_real(x, first + k) - mean) * factor * load_real(scale, k);
#if SHIFT
    v += load_real(shift, k);
#endif
    store_real(y, first + k, v);
  }
}
