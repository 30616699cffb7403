// Computes the marked results of TILES tiles directly (see winograd_marks.cl), in VECTORS * WIDE maps of a group. Their
// weights are [group][part][channel][9][VECTORS * WIDE], padded with zeros. Neighbouring items process neighbouring
// tiles.
#define JOIN_WIDE(a, b) a##b
#define WIDE_OF(a, b) JOIN_WIDE(a, b)
typedef WIDE_OF(float, WIDE) wide;
#define MAPS (VECTORS * WIDE)

__kernel ONE_ITEM void winograd_repair(__global const uchar* restrict marks, __global const float* restrict x,
                                       __global const float* restrict weights,
#if BIAS
                                       __global const float* restrict bias,
#endif
#if RESIDUAL
                                       __global const float* restrict residual,
#endif
                                       __global float* restrict y) {
  const int part = get_global_id(1), group = part / MAP_PARTS, first = part % MAP_PARTS * MAPS;
  weights += (ulong)part * (GROUP_C * 9 * MAPS);
  for (int tile = 0; tile < TILES; ++tile) {
    const int place = get_global_id(0) * TILES + tile, image = place / (PLACES_W * PLACES_H);
    const int mark = marks[(ulong)group * PLACES + place];
    if (mark == 0) continue;
    const int w = place % PLACES_W * 2, h = place / PLACES_W % PLACES_H * 2;
    const int is_inside = h >= PH && w >= PW && h - PH + 4 <= IH && w - PW + 4 <= IW;
    wide sums[4][VECTORS];
    for (int k = 0; k < 4; ++k) {
      for (int n = 0; n < VECTORS; ++n) sums[k][n] = (wide)(0.0f);
    }
    __global const float* from = x + ((ulong)image * C + group * GROUP_C) * (IH * IW);
    for (int c = 0; c < (mark & 15 ? GROUP_C : 0); ++c, from += IH * IW) {
      float d[4][4];
      if (is_inside) {
#pragma unroll
        for (int i = 0; i < 4; ++i) vstore4(vload4(0, from + ((h + i - PH) * IW + w - PW)), 0, d[i]);
      } else {
        for (int i = 0; i < 4; ++i) {
          const int ih = h + i - PH, is_row = ih >= 0 && ih < IH;
          for (int j = 0; j < 4; ++j) {
            const int iw = w + j - PW;
            d[i][j] = is_row && iw >= 0 && iw < IW ? from[ih * IW + iw] : 0.0f;
          }
        }
      }
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
#pragma unroll
        for (int n = 0; n < VECTORS; ++n) {
          const wide weight = WIDE_OF(vload, WIDE)(0, weights + (c * 9 + tap) * MAPS + n * WIDE);
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[k][n] += weight * d[k / 2 + tap / 3][k % 2 + tap % 3];
        }
      }
    }
    for (int k = 0; k < 4; ++k) {
      if (!(mark >> k & 17)) continue;
      float e[MAPS];
      for (int n = 0; n < VECTORS; ++n) WIDE_OF(vstore, WIDE)(sums[k][n], n, e);
      const int col = (h + k / 2) * OW + w + k % 2;
      for (int n = 0; n < MAPS && first + n < GROUP_M; ++n) {
        const int row = group * GROUP_M + first + n;
        const ulong at = ((ulong)image * M + row) * (OH * OW) + col;
        float v = e[n];
        EPILOGUE
        y[at] = v;
      }
    }
  }
}
