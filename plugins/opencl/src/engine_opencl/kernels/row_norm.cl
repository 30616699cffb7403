// Layer normalization (MEAN) or RMS normalization of one row an item; the variance is of deviations, in a second pass.
__kernel void row_norm(__global const float* restrict x, __global const float* restrict scale,
#if SHIFT
                       __global const float* restrict shift,
#endif
                       __global float* restrict y, const float epsilon) {
  const ulong first = get_global_id(0) * (ulong)LENGTH;
  float mean = 0.0f;
#if MEAN
  for (int k = 0; k < LENGTH; ++k) mean += x[first + k];
  mean /= LENGTH;
#endif
  float squares = 0.0f;
  for (int k = 0; k < LENGTH; ++k) {
    const float d = x[first + k] - mean;
    squares += d * d;
  }
  const float factor = 1.0f / sqrt(squares / LENGTH + epsilon);
  for (int k = 0; k < LENGTH; ++k) {
    float v = (x[first + k] - mean) * factor * scale[k];
#if SHIFT
    v += shift[k];
#endif
    y[first + k] = v;
  }
}
