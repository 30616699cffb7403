// Like winograd_input.cl, for CPUs: an item transforms one map, LANES neighbouring tiles at a time. The four input rows
// of a row of tiles are first copied with zero padding, so that tiles need no border checks.
#define MAP_PLACES (PLACES_H * PLACES_W)

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void winograd_input_rows(__global const real* restrict x,
                                                                                 __global real* restrict v) {
  const int map = get_global_id(0);
  const long from = (long)map * (IH * IW);
  __attribute__((aligned(64))) float read[4 * READ_WIDTH];
  v += (ulong)(map % C) * PLACES + (ulong)(map / C) * MAP_PLACES;
  for (int row = 0; row < PLACES_H; ++row) {
    for (int t = 0; t < 4; ++t) {
      const int ih = row * 2 - PH + t, is_row = ih >= 0 && ih < IH;
      for (int k = 0; k < READ_WIDTH; k += LANES) {
        const int iw = k - PW;
        const long at = from + (long)ih * IW + iw;
        float* to = read + t * READ_WIDTH + k;
        if (!is_row || iw >= IW) {
          put_lanes((lanes)(0.0f), to);
        } else if (at >= 0 && at + LANES <= SIZE) {
          const places place = iw + LANE_NUMBERS;
          const places is_inside = (place >= 0) & (place < IW);
          put_lanes(is_inside ? load_real_lanes(x, at) : (lanes)(0.0f), to);
        } else {
          for (int l = 0; l < LANES; ++l) to[l] = iw + l >= 0 && iw + l < IW ? load_real(x, at + l) : 0.0f;
        }
      }
    }
    for (int w = 0; w < PLACES_W; w += LANES) {
      lanes d[4][4], t[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* at = read + i * READ_WIDTH + 2 * w;
        const lanes a = get_lanes(at), b = get_lanes(at + LANES), c = get_lanes(at + 2), e = get_lanes(at + 2 + LANES);
        d[i][0] = (lanes)(a.even, b.even), d[i][1] = (lanes)(a.odd, b.odd);
        d[i][2] = (lanes)(c.even, e.even), d[i][3] = (lanes)(c.odd, e.odd);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        t[0][j] = d[0][j] - d[2][j];
        t[1][j] = d[1][j] + d[2][j];
        t[2][j] = d[2][j] - d[1][j];
        t[3][j] = d[1][j] - d[3][j];
      }
      // Excess elements of this row of tiles are overwritten by the next row; beyond the map, another item may write.
      const int place = row * PLACES_W + w;
      const int count = place + LANES <= MAP_PLACES ? LANES : PLACES_W - w;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        put_real(v, (ulong)(4 * i) * STEP + place, 1, count, t[i][0] - t[i][2]);
        put_real(v, (ulong)(4 * i + 1) * STEP + place, 1, count, t[i][1] + t[i][2]);
        put_real(v, (ulong)(4 * i + 2) * STEP + place, 1, count, t[i][2] - t[i][1]);
        put_real(v, (ulong)(4 * i + 3) * STEP + place, 1, count, t[i][1] - t[i][3]);
      }
    }
  }
}
