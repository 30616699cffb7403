// Rows, see rows.cl, divided by their L1 norm (P 1) or L2 norm; a zero row is unchanged.
ROWS_KERNEL void lp_norm(__global const real* restrict x, __global real* restrict y) {
  SCRATCH(float)
  const ulong first = BASE;
  float sum = 0.0f;
  for (int k = LANE; k < LENGTH; k += LANES) {
    const float e = load_real(x, first + (ulong)k * INNER);
    sum += P == 1 ? fabs(e) : e * e;
  }
  OVER_LANES(sum, ADD, scratch);
  const float norm = P == 1 ? sum : sqrt(sum);
  for (int k = HAS_ROW ? LANE : LENGTH; k < LENGTH; k += LANES) {
    const ulong at = first + (ulong)k * INNER;
    store_real(y, at, norm == 0.0f ? 0.0f : load_real(x, at) / norm);
  }
}
