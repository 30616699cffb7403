// Softmax, or its logarithm (LOG), of rows; see rows.cl. Rows that do not fit into registers are read twice, and the
// sum is rescaled whenever a larger element is found.
ROWS_KERNEL void softmax(__global const real* restrict x, __global real* restrict y) {
  SCRATCH(wide_t)
  const ulong first = BASE;
  wide_t e[KEPT];
  wide_t top = -INFINITY, sum = 0.0f;
#if CHUNKS == 1
  KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
    const int k = i * LANES + LANE;
    e[i] = INSIDE(k) ? load_real(x, first + (ulong)k * INNER) : -INFINITY;
    top = fmax(top, e[i]);
  }
  OVER_LANES(top, fmax, scratch);
  KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
    e[i] -= top;
    const wide_t power = exp(e[i]);
    sum += power;
    e[i] = LOG ? e[i] : power;
  }
  OVER_LANES(sum, ADD, scratch);
  const wide_t scale = LOG ? log(sum) : 1.0f / sum;
  KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
    const int k = i * LANES + LANE;
    if (HAS_ROW && INSIDE(k)) store_real(y, first + (ulong)k * INNER, LOG ? e[i] - scale : e[i] * scale);
  }
#else
  for (int c = 0; c < CHUNKS; ++c) {
    const wide_t before = top;
    KEPT_LOOP for (int i = 0; i < KEPT; ++i) {
      const int k = (c * KEPT + i) * LANES + LANE;
      e[i] = INSIDE(k) ? load_real(x, first + (ulong)k * INNER) : -INFINITY;
      top = fmax(top, e[i]);
    }
    const wide_t base = top == -INFINITY ? 0.0f : top;
    sum *= exp(before - base);
    KEPT_LOOP for (int i = 0; i < KEPT; ++i) sum += exp(e[i] - base);
  }
  const wide_t own = top;
  OVER_LANES(top, fmax, scratch);
  sum *= exp(own - (top == -INFINITY ? 0.0f : top));
  OVER_LANES(sum, ADD, scratch);
  const wide_t scale = LOG ? log(sum) : 1.0f / sum;
  for (int k = HAS_ROW ? LANE : LENGTH; k < LENGTH; k += LANES) {
    const ulong at = first + (ulong)k * INNER;
    const wide_t v = load_real(x, at) - top;
    store_real(y, at, LOG ? v - scale : exp(v) * scale);
  }
#endif
}
