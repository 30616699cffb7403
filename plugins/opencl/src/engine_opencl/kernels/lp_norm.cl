__kernel void lp_norm(__global const float* restrict x, __global float* restrict y) {
  const ulong first = get_global_id(1) * ((ulong)LENGTH * INNER) + get_global_id(0);
  float sum = 0.0f;
  for (int k = 0; k < LENGTH; ++k) {
    const float e = x[first + (ulong)k * INNER];
    sum += P == 1 ? fabs(e) : e * e;
  }
  const float norm = P == 1 ? sum : sqrt(sum);
  for (int k = 0; k < LENGTH; ++k) {
    const ulong at = first + (ulong)k * INNER;
    y[at] = norm == 0.0f ? 0.0f : x[at] / norm;
  }
}
