// Computes the marked results of TILES tiles of a row directly (see winograd_marks.cl), BESIDE tiles at a time, in MAPS
// maps of a group. Their weights are [group][part][channel][9][MAPS], padded with zeros. Neighbouring items process
// neighbouring tiles.
#define JOIN_MAPS(a, b) a##b
#define MAPS_OF(a, b) JOIN_MAPS(a, b)
#define COLS (2 * BESIDE)
typedef MAPS_OF(float, MAPS) maps;

__kernel ONE_ITEM void winograd_repair(__global const uchar* restrict marks, __global const float* restrict x,
                                       __global const float* restrict weights ADDED,
                                       __global float* restrict y) {
  const int part = get_global_id(1), group = part / MAP_PARTS, first = part % MAP_PARTS * MAPS;
  weights += (ulong)part * (GROUP_C * 9 * MAPS);
  for (int tile = 0; tile < TILES; tile += BESIDE) {
    const int place = get_global_id(0) * TILES + tile, image = place / (PLACES_W * PLACES_H);
    int mark = 0;
    for (int n = 0; n < BESIDE && tile + n < TILES; ++n) mark |= marks[(ulong)group * PLACES + place + n] << (8 * n);
    if (mark == 0) continue;
    const int w = place % PLACES_W * 2, h = place / PLACES_W % PLACES_H * 2;
    const int is_inside = h >= PH && w >= PW && h - PH + 4 <= IH && w - PW + COLS + 2 <= IW;
    maps sums[2][COLS];
#pragma unroll
    for (int k = 0; k < 2 * COLS; ++k) sums[k / COLS][k % COLS] = (maps)(0.0f);
    __global const float* from = x + ((ulong)image * C + group * GROUP_C) * (IH * IW);
    for (int c = 0; c < (mark & 0x0f0f ? GROUP_C : 0); ++c, from += IH * IW) {
      float d[4][COLS + 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < COLS + 2; ++j) {
          const int ih = h + i - PH, iw = w + j - PW;
          d[i][j] = is_inside || (ih >= 0 && ih < IH && iw >= 0 && iw < IW) ? from[ih * IW + iw] : 0.0f;
        }
      }
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
        const maps weight = MAPS_OF(vload, MAPS)(0, weights + (c * 9 + tap) * MAPS);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < COLS; ++j) sums[i][j] += weight * d[i + tap / 3][j + tap % 3];
        }
      }
    }
    // Sums that loops with conditions index would not stay in registers.
    float all[2 * COLS * MAPS];
#pragma unroll
    for (int k = 0; k < 2 * COLS; ++k) MAPS_OF(vstore, MAPS)(sums[k / COLS][k % COLS], k, all);
    for (int k = 0; k < 4 * BESIDE; ++k) {
      if (!(mark >> (k / 4 * 8 + k % 4) & 0x11)) continue;
      const int i = k % 4 / 2, j = k / 4 * 2 + k % 2, col = (h + i) * OW + w + j;
      const float* e = all + (i * COLS + j) * MAPS;
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
