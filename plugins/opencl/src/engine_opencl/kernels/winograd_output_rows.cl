// Like winograd_output.cl, for CPUs: an item computes one map of the result, LANES neighbouring tiles at a time. The
// products are followed by memory for LANES more, so that all vectors are whole.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void winograd_output_rows(__global const real* restrict s ADDED,
                                                                                  __global real* restrict y) {
  const int map = get_global_id(0), bias_row = map % M;
  s += (ulong)bias_row * PLACES + (ulong)(map / M) * (PLACES_H * PLACES_W);
  for (int row = 0; row < PLACES_H; ++row) {
    for (int w = 0; w < PLACES_W; w += LANES) {
      __global const real* from = s + row * PLACES_W + w;
      lanes t[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const lanes a = load_real_lanes(from, (ulong)(j)*STEP), b = load_real_lanes(from, (ulong)(4 + j) * STEP);
        const lanes c = load_real_lanes(from, (ulong)(8 + j) * STEP), d = load_real_lanes(from, (ulong)(12 + j) * STEP);
        t[0][j] = a + b + c;
        t[1][j] = b - c - d;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row * 2 + i >= OH) continue;
        const lanes left = t[i][0] + t[i][1] + t[i][2], right = t[i][1] - t[i][2] - t[i][3];
        float e[2 * LANES];
        lanes both;
        both.even = left.lo, both.odd = right.lo;
        put_lanes(both, e);
        both.even = left.hi, both.odd = right.hi;
        put_lanes(both, e + LANES);
        for (int half_row = 0; half_row < 2; ++half_row) {
          const int col = (row * 2 + i) * OW + w * 2 + half_row * LANES;
          const int count = min(LANES, OW - w * 2 - half_row * LANES);
          if (count <= 0) continue;
          const ulong at = (ulong)map * (OH * OW) + col;
          lanes v = get_lanes(e + half_row * LANES);
          EPILOGUE
          put_real(y, at, 1, count, v);
        }
      }
    }
  }
}
