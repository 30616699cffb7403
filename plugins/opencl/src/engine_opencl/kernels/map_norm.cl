// Instance and group normalization: an item has one group of one image, whose elements lie together.
__kernel void map_norm(__global const real* restrict x, __global const real* restrict scale,
                       __global const real* restrict shift, __global real* restrict y, const float epsilon) {
  const ulong length = (ulong)PER_GROUP * PIXELS;
  const ulong first = get_global_id(0) * length;
  const int channel = (int)(get_global_id(0) % GROUPS) * PER_GROUP;
  float mean = 0.0f;
  for (ulong k = 0; k < length; ++k) mean += load_real(x, first + k);
  mean /= length;
  float squares = 0.0f;
  for (ulong k = 0; k < length; ++k) {
    const float d = load_real(x, first + k) - mean;
    squares += d * d;
  }
  const float factor = 1.0f / sqrt(squares / length + epsilon);
  for (int c = 0; c < PER_GROUP; ++c) {
    const float a = factor * load_real(scale, channel + c), b = load_real(shift, channel + c);
    for (ulong k = 0; k < PIXELS; ++k) {
      const ulong at = first + c * (ulong)PIXELS + k;
      store_real(y, at, (load_real(x, at) - mean) * a + b);
    }
  }
}
