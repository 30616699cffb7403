// A convolution, or every phase of a transposed one, with few channels a group: an item computes CHANNELS channels of
// one column. Neighbouring items are neighbours in space, so that they read neighbouring elements and the same weights.
__kernel void conv(__global const real* restrict x, __global const real* restrict w,
                   __global const int4* restrict taps, __global const int4* restrict phases,
#if BIAS
                   __global const real* restrict bias,
#endif
#if RESIDUAL
                   __global const real* restrict residual,
#endif
                   __global real* restrict y) {
  const int4 place = place_of(get_global_id(0));
  const int block = get_global_id(1) % BLOCKS, group = get_global_id(1) / BLOCKS, phase = get_global_id(2);
  const int4 part = phases[phase];
  const int first = first_of(place), col = result_of(place, phase);
  if (col < 0) return;
  x += ((ulong)place.x * C + (ulong)group * GC) * MAP;
  w += ((ulong)get_global_id(1) * STEPS + part.x) * CHANNELS;
  float sum[CHANNELS];
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) sum[i] = 0.0f;
  for (int c = 0; c < GC; ++c) {
    for (int t = 0; t < part.z; ++t) {
      const int4 tap = taps[part.w + t];
      const float value = is_inside(place, tap) ? load_real(x, (ulong)c * MAP + (first + tap.x)) : 0.0f;
      const ulong from = ((ulong)c * part.z + t) * CHANNELS;
#pragma unroll
      for (int i = 0; i < CHANNELS; ++i) sum[i] += value * load_real(w, from + i);
    }
  }
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) {
    if (block * CHANNELS + i < GM) {
      const int row = group * GM + block * CHANNELS + i;
      const ulong at = ((ulong)place.x * M + row) * SIZE + col;
      float v = sum[i];
      EPILOGUE
      store_real(y, at, v);
    }
  }
}
