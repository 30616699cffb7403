// C = A B: a work group of 16 x 16 items computes 64 x 64 elements, 4 x 4 an item, from tiles in local memory. For GPUs.
#define TILE 64
#define DEPTH 16

__kernel __attribute__((reqd_work_group_size(16, 16, 1))) void gemm(__global const real* restrict a,
                                                                    __global const real* restrict b,
                                                                    __global real* restrict c
#if BIAS
                                                                    , __global const real* restrict bias
#endif
#if RESIDUAL
                                                                    , __global const real* restrict residual
#endif
) {
  __local float left[DEPTH][TILE + 1];
  __local float right[DEPTH][TILE];
  const int x = get_local_id(0), y = get_local_id(1), item = y * 16 + x;
  const int first_row = get_group_id(1) * TILE, first_col = get_group_id(0) * TILE;
  ulong r = get_global_id(2);
  const ulong base = r * ((ulong)M * N);
  BATCH
  float sum[4][4] = {{0.0f}};
  for (int k0 = 0; k0 < K; k0 += DEPTH) {
    for (int n = item; n < TILE * DEPTH; n += 256) {
      // The faster index goes along the axis whose elements are neighbours.
      const int ad = A_COL == 1 ? n % DEPTH : n / TILE, ar = A_COL == 1 ? n / DEPTH : n % TILE;
      left[ad][ar] = first_row + ar < M && k0 + ad < K
                         ? load_real(a, (ulong)(first_row + ar) * A_ROW + (ulong)(k0 + ad) * A_COL) : 0.0f;
      const int bd = B_COL == 1 ? n / TILE : n % DEPTH, bc = B_COL == 1 ? n % TILE : n / DEPTH;
      right[bd][bc] = first_col + bc < N && k0 + bd < K
                          ? load_real(b, (ulong)(k0 + bd) * B_ROW + (ulong)(first_col + bc) * B_COL) : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      float l[4], t[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        l[i] = left[k][y + 16 * i];
        t[i] = right[k][x + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += l[i] * t[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int row = first_row + y + 16 * i, col = first_col + x + 16 * j;
      if (row < M && col < N) {
        const ulong at = base + (ulong)row * N + col;
        float v = sum[i][j];
        EPILOGUE
        store_real(c, at, v);
      }
    }
}
