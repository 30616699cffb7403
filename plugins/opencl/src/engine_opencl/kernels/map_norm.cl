// Instance and group normalization: an item has one group of one image, whose elements lie together.
__kernel void map_norm(__global const float* restrict x, __global const float* restrict scale,
                       __global const float* restrict shift, __global float* restrict y, const float epsilon) {
  const ulong length = (ulong)PER_GROUP * PIXELS;
  const ulong first = get_global_id(0) * length;
  const int channel = (int)(get_global_id(0) % GROUPS) * PER_GROUP;
  float mean = 0.0f;
  for (ulong k = 0; k < length; ++k) mean += x[first + k];
  mean /= length;
  float squares = 0.0f;
  for (ulong k = 0; k < length; ++k) {
    const float d = x[first + k] - mean;
    squares += d * d;
  }
  const float factor = 1.0f / sqrt(squares / length + epsilon);
  for (int c = 0; c < PER_GROUP; ++c) {
    const float a = factor * scale[channel + c], b = shift[channel + c];
    for (ulong k = 0; k < PIXELS; ++k) {
      const ulong at = first + c * (ulong)PIXELS + k;
      y[at] = (x[at] - mean) * a + b;
    }
  }
}
