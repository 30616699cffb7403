// Quantizes to 8-bit integers over the range of the minimum, the maximum and 0. Each item computes scale and zero
// point; the first one stores them.
__kernel void dynamic_quantize(__global const real* restrict x, __global const real* restrict least,
                               __global const real* restrict largest, __global uchar* restrict y,
                               __global real* restrict scale, __global uchar* restrict zero) {
  const ulong i = get_global_id(0);
  const float low = fmin(load_real(least, 0), 0.0f), high = fmax(load_real(largest, 0), 0.0f);
  const float s = (high == low ? 1.0f : high - low) / 255.0f;
  const float point = rint(clamp(-low / s, 0.0f, 255.0f));
  if (i < COUNT) y[i] = (int)clamp(rint(load_real(x, i) / s) + point, 0.0f, 255.0f);
  if (i == 0) {
    store_real(scale, 0, s);
    zero[0] = (int)point;
  }
}
