__kernel void softmax(__global const real* restrict x, __global real* restrict y) {
  const ulong first = get_global_id(1) * ((ulong)LENGTH * INNER) + get_global_id(0);
  float largest = -INFINITY;
  for (int k = 0; k < LENGTH; ++k) {
    const float e = load_real(x, first + (ulong)k * INNER);
    largest = isnan(e) || e > largest ? e : largest;
  }
  float sum = 0.0f;
  for (int k = 0; k < LENGTH; ++k) sum += exp(load_real(x, first + (ulong)k * INNER) - largest);
  const float scale = LOG ? log(sum) : 1.0f / sum;
  for (int k = 0; k < LENGTH; ++k) {
    const ulong at = first + (ulong)k * INNER;
    const float e = load_real(x, at) - largest;
    store_real(y, at, LOG ? e - scale : exp(e) * scale);
  }
}
