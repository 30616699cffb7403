// A 2-D convolution with one input channel per group, for CPUs: an item computes several maps of the result, or pieces
// of ROWS rows. The input of a piece is first copied with zero padding, so that taps need no border checks.
#define READ_ROWS ((ROWS - 1) * SH + (KH - 1) * LH + 1)

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void depthwise_rows(__global const real* restrict x,
                                                                            __global const real* restrict w ADDED,
                                                                            __global real* restrict y) {
  __attribute__((aligned(64))) float read[READ_ROWS * READ_WIDTH];
  const int first = get_global_id(0) * PIECES;
  for (int piece = first; piece < min(first + PIECES, ALL_PIECES); ++piece) {
    const ulong map = piece / MAP_PIECES, bias_row = map % M;
    const int oh = piece % MAP_PIECES * ROWS, rows = min(ROWS, OH - oh);
    const ulong from = (map / M * C + bias_row / GM) * (IH * IW), weights = bias_row * (KH * KW);
    for (int t = 0; t < READ_ROWS; ++t) {
      const int ih = oh * SH - PH + t, is_inside = ih >= 0 && ih < IH;
      float* to = read + t * READ_WIDTH;
      for (int k = 0; k < PW; ++k) to[k] = 0.0f;
      int k = 0;
      for (; k + LANES <= USED; k += LANES)
        put_lanes(is_inside ? load_real_lanes(x, from + ih * IW + k) : (lanes)(0.0f), to + PW + k);
      for (; k < USED; ++k) to[PW + k] = is_inside ? load_real(x, from + ih * IW + k) : 0.0f;
      for (k = PW + USED; k < READ_WIDTH; ++k) to[k] = 0.0f;
    }
    for (int row = 0; row < rows; ++row) {
      for (int ow = 0; ow < OW; ow += LANES) {
        lanes v = 0.0f;
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
#pragma unroll
          for (int kw = 0; kw < KW; ++kw) {
            const float* at = read + (row * SH + kh * LH) * READ_WIDTH + ow * SW + kw * LW;
            const float weight = load_real(w, weights + kh * KW + kw);
#if SW == 1
            v += weight * get_lanes(at);
#elif SW == 2
            v += weight * (lanes)(get_lanes(at).even, get_lanes(at + LANES).even);
#else
            float e[LANES];
            for (int l = 0; l < LANES; ++l) e[l] = at[l * SW];
            v += weight * get_lanes(e);
#endif
          }
        }
        const int col = (oh + row) * OW + ow, count = min(LANES, OW - ow);
        const ulong at = map * (OH * OW) + col;
        EPILOGUE
        put_real(y, at, 1, count, v);
      }
    }
  }
}
