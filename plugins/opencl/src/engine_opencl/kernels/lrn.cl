__kernel void lrn(__global const real* restrict x, __global real* restrict y, const float alpha, const float beta,
                  const float bias) {
  const ulong pixel = get_global_id(0);
  const int c = get_global_id(1);
  const ulong image = get_global_id(2) * ((ulong)C * PIXELS);
  float squares = 0.0f;
  for (int k = max(c - BEFORE, 0); k <= min(c + AFTER, C - 1); ++k) {
    const float e = load_real(x, image + (ulong)k * PIXELS + pixel);
    squares += e * e;
  }
  const ulong at = image + (ulong)c * PIXELS + pixel;
  store_real(y, at, load_real(x, at) * pow(bias + alpha * squares, -beta));
}
