// Computes directly the 2x2 results of tiles whose largest value exceeds LARGEST, or RANGE times the largest one that
// one of the results sees: rounding errors of Winograd's F(2x2, 3x3) are relative to the former. An item processes a tile
// in all maps of a group.
__kernel void winograd_repair(__global const float* restrict ranges, __global const float* restrict x,
                              __global const float* restrict weights,
#if BIAS
                              __global const float* restrict bias,
#endif
#if RESIDUAL
                              __global const float* restrict residual,
#endif
                              __global float* restrict y) {
  const int place = get_global_id(0), group = get_global_id(1), image = place / (PLACES_W * PLACES_H);
  const int w = place % PLACES_W * 2, h = place / PLACES_W % PLACES_H * 2;
  ranges += (ulong)group * PARTS * POSITIONS + image * (IH * IW);
  float seen[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}, most = 0.0f;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int ih = h + i - PH, iw = w + j - PW;
      if (ih < 0 || ih >= IH || iw < 0 || iw >= IW) continue;
      float value = 0.0f;
      for (int part = 0; part < PARTS; ++part) value = fmax(value, ranges[(ulong)part * POSITIONS + ih * IW + iw]);
      most = fmax(most, value);
      for (int k = 0; k < 4; ++k) {
        if (i - k / 2 >= 0 && i - k / 2 < 3 && j - k % 2 >= 0 && j - k % 2 < 3) {
          seen[k / 2][k % 2] = fmax(seen[k / 2][k % 2], value);
        }
      }
    }
  }
  float least = INFINITY;
  for (int k = 0; k < 4; ++k) {
    if (h + k / 2 < OH && w + k % 2 < OW) least = fmin(least, seen[k / 2][k % 2]);
  }
  if (most <= LARGEST && most <= RANGE * least) return;
  x += ((ulong)image * C + group * GROUP_C) * (IH * IW);
  for (int row = group * GROUP_M; row < (group + 1) * GROUP_M; ++row) {
    for (int k = 0; k < 4; ++k) {
      const int oh = h + k / 2, ow = w + k % 2;
      if (oh >= OH || ow >= OW) continue;
      float sum = 0.0f;
      for (int c = 0; c < GROUP_C; ++c) {
        for (int tap = 0; tap < 9; ++tap) {
          const int ih = oh + tap / 3 - PH, iw = ow + tap % 3 - PW;
          if (ih < 0 || ih >= IH || iw < 0 || iw >= IW) continue;
          sum += weights[((ulong)row * GROUP_C + c) * 9 + tap] * x[(ulong)c * (IH * IW) + ih * IW + iw];
        }
      }
      const int col = oh * OW + ow;
      const ulong at = ((ulong)image * M + row) * (OH * OW) + col;
      float v = sum;
      EPILOGUE
      y[at] = v;
    }
  }
}
