// Computes each element along one axis from the elements at TAPS indices; an index of -1 means the value outside.
__kernel void resize(__global const stored_T* restrict x, __global const int* restrict indices,
                     __global const float* restrict weights, __global stored_T* restrict y, const T outside) {
  const ulong k = get_global_id(0);
  const ulong at = get_global_id(1);
  const ulong outer = get_global_id(2);
  x += outer * ((ulong)LENGTH * INNER) + k;
  y += (outer * SIZE + at) * INNER + k;
  const int first = indices[at * TAPS];
#if NEAREST
  store_T(y, 0, first < 0 ? outside : load_T(x, (ulong)first * INNER));
#else
  if (first < 0) {
    store_T(y, 0, outside);
    return;
  }
  float sum = 0.0f;
  for (int t = 0; t < TAPS; ++t) {
    const float weight = weights[at * TAPS + t];
    // 0 times infinity is NaN.
    sum += weight == 0.0f ? 0.0f : weight * load_T(x, (ulong)indices[at * TAPS + t] * INNER);
  }
  store_T(y, 0, sum);
#endif
}
