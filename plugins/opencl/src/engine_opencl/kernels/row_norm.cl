// (x - mean) / sqrt(variance + epsilon) * scale + shift over rows, see rows.cl; without MEAN, the mean is 0. CHANNEL is
// the index of scale and shift for element k. The variance is computed from deviations: from the overall mean if the
// row fits into registers, else from the mean of each chunk, combined pairwise (Chan, Golub and LeVeque, Updating
// formulae and a pairwise algorithm for computing sample variances, 1979). STATISTICS: how many of the rows' mean and
// inverse standard deviation are stored, in f32.
ROWS_KERNEL void row_norm(__global const real* restrict x, __global const real* restrict scale,
#if SHIFT
                          __global const real* restrict shift,
#endif
                          __global real* restrict y,
#if STATISTICS
                          __global float* restrict means,
#endif
#if STATISTICS > 1
                          __global float* restrict inverse_deviations,
#endif
                          const float epsilon) {
  SCRATCH(float)
  const ulong row = ROW, first = row * LENGTH;
  float e[KEPT];
  float mean = 0.0f, squares = 0.0f;
#if CHUNKS == 1
  KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
    const int k = i * LANES + LANE;
    e[i] = INSIDE(k) ? load_real(x, first + k) : 0.0f;
    mean += e[i];
  }
#if MEAN
  OVER_LANES(mean, ADD, scratch);
  mean /= LENGTH;
#else
  mean = 0.0f;
#endif
  KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
    e[i] -= mean;
    squares += INSIDE(i * LANES + LANE) ? e[i] * e[i] : 0.0f;
  }
#else
  float count = 0.0f;
  for (int c = 0; c < CHUNKS; ++c) {
    float sum = 0.0f, own = 0.0f;
    const int rest = (LENGTH - LANE + LANES - 1) / LANES - c * KEPT;
    const float taken = clamp(rest, 0, KEPT);
    KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
      const int k = (c * KEPT + i) * LANES + LANE;
      e[i] = INSIDE(k) ? load_real(x, first + k) : 0.0f;
      sum += e[i];
    }
    const float middle = MEAN && taken > 0.0f ? sum / taken : 0.0f;
    KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
      const float d = e[i] - middle;
      own += i < rest ? d * d : 0.0f;
    }
    squares += own;
#if MEAN
    if (taken > 0.0f) {
      const float apart = middle - mean, part = taken / (count + taken);
      if (count > 0.0f) squares += apart * apart * (count * part);
      mean = count > 0.0f ? mean + apart * part : middle;
      count += taken;
    }
#endif
  }
#if MEAN
  const float own_mean = mean;
  mean *= count / LENGTH;
  OVER_LANES(mean, ADD, scratch);
  if (count > 0.0f) squares += (own_mean - mean) * (own_mean - mean) * count;
#endif
#endif
  OVER_LANES(squares, ADD, scratch);
  const float factor = 1.0f / sqrt(squares / LENGTH + epsilon);
#if STATISTICS
  if (HAS_ROW && LANE == 0) means[row] = mean;
#endif
#if STATISTICS > 1
  if (HAS_ROW && LANE == 0) inverse_deviations[row] = factor;
#endif
#if CHUNKS == 1
#define EACH_ELEMENT KEPT_LOOP for (int i = 0; i < KEPT; ++i)
#define PLACE (i * LANES + LANE)
#define DEVIATION e[i]
#else
#define EACH_ELEMENT for (int i = LANE; i < LENGTH; i += LANES)
#define PLACE i
#define DEVIATION (load_real(x, first + i) - mean)
#endif
  EACH_ELEMENT {
    const int k = PLACE;
    if (HAS_ROW && INSIDE(k)) {
      float v = DEVIATION * factor * load_real(scale, CHANNEL);
#if SHIFT
      v += load_real(shift, CHANNEL);
#endif
      store_real(y, first + k, v);
    }
  }
}
