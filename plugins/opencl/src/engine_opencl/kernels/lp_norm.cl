__kernel void lp_norm(__global const real* restrict x, __global real* restrict y) {
  const ulong first = get_global_id(1) * ((ulong)LENGTH * INNER) + get_global_id(0);
  float sum = 0.0f;
  for (int k = 0; k < LENGTH; ++k) {
    const float e = load_real(x, first + (ulong)k * INNER);
    sum += P == 1 ? fabs(e) : e * e;
  }
  const float norm = P == 1 ? sum : sqrt(sum);
  for (int k = 0; k < LENGTH; ++k) {
    const ulong at = first + (ulong)k * INNER;
    store_real(y, at, norm == 0.0f ? 0.0f : load_real(x, at) / norm);
  }
}
