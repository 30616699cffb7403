// Computes each element along one axis from the elements at TAPS indices; an index of -1 means the value outside. The
// input has `length` elements along the axis.
__kernel void resize(__global const stored_T* restrict x, __global const int* restrict indices,
                     __global const float* restrict weights, __global stored_T* restrict y, const T outside,
                     const ulong length) {
  const ulong k = get_global_id(0), inner = get_global_size(0);
  const ulong at = get_global_id(1), size = get_global_size(1);
  const ulong outer = get_global_id(2);
  x += outer * (length * inner) + k;
  y += (outer * size + at) * inner + k;
  const int first = indices[at * TAPS];
#if NEAREST
  store_T(y, 0, first < 0 ? outside : load_T(x, (ulong)first * inner));
#else
  if (first < 0) {
    store_T(y, 0, outside);
    return;
  }
  float sum = 0.0f;
  for (int t = 0; t < TAPS; ++t) {
    const float weight = weights[at * TAPS + t];
    // 0 times infinity is NaN.
    sum += weight == 0.0f ? 0.0f : weight * load_T(x, (ulong)indices[at * TAPS + t] * inner);
  }
  store_T(y, 0, sum);
#endif
}
