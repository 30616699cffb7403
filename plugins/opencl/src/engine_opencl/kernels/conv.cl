// A convolution, or every phase of a transposed one, with few channels per group: an item computes CHANNELS channels of
// WIDE columns, and reads each weight once for them. Neighbouring items are spatial neighbours, so that they read
// neighbouring elements and the same weights; the columns of an item are LANES apart.
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void conv(
    __global const real* restrict x, __global const real* restrict w, __global const int4* restrict taps,
    __global const int4* restrict phases ADDED,
    __global real* restrict y) {
  const int column = get_group_id(0) * (LANES * WIDE) + (int)get_local_id(0);
  const int block = get_global_id(1) % BLOCKS, group = get_global_id(1) / BLOCKS, phase = get_global_id(2);
  // (first row of the weights, rows, taps, first tap)
  const int4 part = phases[phase];
  w += ((ulong)get_global_id(1) * STEPS + part.x) * CHANNELS;
  taps += part.w;
  int4 place[WIDE];
  ulong from[WIDE];
  float sum[WIDE][CHANNELS];
#pragma unroll
  for (int j = 0; j < WIDE; ++j) {
    place[j] = place_of(min(column + j * LANES, COLUMNS - 1));
    from[j] = ((ulong)place[j].x * C + (ulong)group * GC) * MAP + (long)first_of(place[j]);
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) sum[j][i] = 0.0f;
  }
  for (int c = 0; c < GC; ++c) {
    for (int t = 0; t < part.z; ++t) {
      const int4 tap = taps[t];
      float weights[CHANNELS];
#if CHANNELS % 4 == 0
#pragma unroll
      for (int i = 0; i < CHANNELS; i += 4) {
        const float4 four = load_real4(w, i);
        weights[i] = four.x, weights[i + 1] = four.y, weights[i + 2] = four.z, weights[i + 3] = four.w;
      }
#else
#pragma unroll
      for (int i = 0; i < CHANNELS; ++i) weights[i] = load_real(w, i);
#endif
      w += CHANNELS;
#pragma unroll
      for (int j = 0; j < WIDE; ++j) {
        const float value = is_inside(place[j], tap) ? load_real(x, from[j] + (long)tap.x) : 0.0f;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) sum[j][i] += value * weights[i];
      }
    }
    x += MAP;
  }
#pragma unroll
  for (int j = 0; j < WIDE; ++j) {
    const int col = result_of(place[j], phase);
    if (column + j * LANES >= COLUMNS || col < 0) continue;
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
      if (block * CHANNELS + i < GM) {
        const int row = group * GM + block * CHANNELS + i;
        const ulong at = ((ulong)place[j].x * M + row) * SIZE + col;
        float v = sum[j][i];
        EPILOGUE
        store_real(y, at, v);
      }
    }
  }
}
