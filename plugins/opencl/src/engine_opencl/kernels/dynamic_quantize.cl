// Quantizes to 8-bit integers over the range of the minimum, the maximum and 0. Each item computes scale and zero
// point; the first one stores them. A zero point that is NaN is 255, a code that is NaN is 0.
__kernel void dynamic_quantize(__global const real* restrict x, __global const real* restrict least,
                               __global const real* restrict largest, __global uchar* restrict y,
                               __global real* restrict scale, __global uchar* restrict zero) {
  const ulong i = get_global_id(0);
  float low = load_real(least, 0), high = load_real(largest, 0);
  low = low > 0.0f || COUNT == 0 ? 0.0f : low;
  high = high < 0.0f || COUNT == 0 ? 0.0f : high;
  const float s = (high == low ? 1.0f : high - low) / 255.0f;
  const float start = -low / s;
  const float point = start <= 255.0f ? rint(start) : 255.0f;
  if (i < COUNT) {
    const float code = rint(load_real(x, i) / s) + point;
    y[i] = isnan(code) ? 0 : (int)clamp(code, 0.0f, 255.0f);
  }
  if (i == 0) {
    store_real(scale, 0, s);
    zero[0] = (int)point;
  }
}
