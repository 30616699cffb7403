// C = A B for GPUs with matrix units: a work group computes TM x TN elements from tiles of TK steps in local memory,
// STAGES of which are copied ahead, a warp TM / WARPS_M x TN / WARPS_N of them. A_ALONG_K, B_ALONG_K: which axis of an
// operand has neighbouring elements, A_WIDTH or B_WIDTH per copy. See tiles.cl for the other parameters.
#define TILES_M ((M + TM - 1) / TM)
#define TILES_N ((N + TN - 1) / TN)
#define A_LINE (A_ALONG_K ? TK : TM)
#define B_LINE (B_ALONG_K ? TK : TN)

// The line and the element in it that an item copies first; further ones are NEXT lines apart.
#define A_NEXT (ITEMS * A_WIDTH / A_LINE)
#define B_NEXT (ITEMS * B_WIDTH / B_LINE)

// Copy an item's part of a tile; zeros beyond the operand. `a`, `b`: the source of its first copy; `rows`, `cols`,
// `steps`: the number remaining from there.
INLINED void copy_left(__local ushort* left, __global const ushort* a, int rows, int steps, int line, int at) {
  UNROLLED
  for (int i = 0; i < (A_ALONG_K ? TM : TK) / A_NEXT; ++i) {
    const int row = A_ALONG_K ? i * A_NEXT : 0, k = A_ALONG_K ? 0 : i * A_NEXT;
    const int valid = row < rows && k < steps ? min(A_ALONG_K ? steps : rows, A_WIDTH) : 0;
    copy_elements(A_WIDTH, left + PLACE(line + i * A_NEXT, at, A_LINE),
                  a + (valid ? (ulong)row * A_ROW + (ulong)k * A_COL : 0), valid);
  }
}
INLINED void copy_right(__local ushort* right, __global const ushort* b, int cols, int steps, int line, int at) {
  UNROLLED
  for (int i = 0; i < (B_ALONG_K ? TN : TK) / B_NEXT; ++i) {
    const int col = B_ALONG_K ? i * B_NEXT : 0, k = B_ALONG_K ? 0 : i * B_NEXT;
    const int valid = col < cols && k < steps ? min(B_ALONG_K ? steps : cols, B_WIDTH) : 0;
    copy_elements(B_WIDTH, right + PLACE(line + i * B_NEXT, at, B_LINE),
                  b + (valid ? (ulong)col * B_COL + (ulong)k * B_ROW : 0), valid);
  }
}

#define COPY_TILES(stage)                                                            \
  {                                                                                  \
    copy_left(left + (stage) * (TM * TK), a, rows, a_steps, a_line, a_at);           \
    copy_right(right + (stage) * (TN * TK), b, cols, b_steps, b_line, b_at);         \
    a += (ulong)TK * A_COL, b += (ulong)TK * B_ROW, a_steps -= TK, b_steps -= TK;    \
  }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void matrix_tiles(__global const real* restrict a_real,
                                                                              __global const real* restrict b_real,
#if SPLITS > 1
                                                                              __global float* restrict sums
#else
                                                                              __global real* restrict c ADDED
#endif
) {
  __local ushort memory[max_of(STAGES * (TM + TN) * TK, 2 * KEPT_ELEMENTS)] __attribute__((aligned(16)));
  __local ushort *left = memory, *right = memory + STAGES * TM * TK;
  UNIT_MEMORY(ITEMS)
  __global const ushort* a = (__global const ushort*)a_real;
  __global const ushort* b = (__global const ushort*)b_real;
  const int item = get_local_id(0), lane = item % 32, warp = item / 32;
  const int warp_row = warp % WARPS_M * (TM / WARPS_M), warp_col = warp / WARPS_M * (TN / WARPS_N);
  const uint group = get_group_id(0), tile = group % (TILES_M * TILES_N);
  // Concurrent groups share rows and columns: bands of tiles are processed column by column.
  const int band = tile / (BAND * TILES_N) * BAND, height = min(TILES_M - band, BAND);
  const int place = tile % (BAND * TILES_N);
  const int first_row = (band + place % height) * TM, first_col = place / height * TN;
  ulong r = group / (TILES_M * TILES_N) % BATCHES;
  const int split = group / ((ulong)TILES_M * TILES_N * BATCHES);
  const ulong base = (split * (ulong)BATCHES + r) * ((ulong)M * N);
  BATCH
  const int begin = split * SPLIT_STEPS, end = min(begin + SPLIT_STEPS, K);
  const int tiles = (end - begin + TK - 1) / TK;
  const int a_line = item / (A_LINE / A_WIDTH), a_at = item % (A_LINE / A_WIDTH) * A_WIDTH;
  const int b_line = item / (B_LINE / B_WIDTH), b_at = item % (B_LINE / B_WIDTH) * B_WIDTH;
  const int a_row = A_ALONG_K ? a_line : a_at, b_col = B_ALONG_K ? b_line : b_at;
  const int rows = M - first_row - a_row, cols = N - first_col - b_col;
  // The number of steps that remain from the next copy on.
  int a_steps = end - begin - (A_ALONG_K ? a_at : a_line), b_steps = end - begin - (B_ALONG_K ? b_at : b_line);
  a += (rows > 0 ? (ulong)(first_row + a_row) * A_ROW : 0) + (ulong)(begin + (A_ALONG_K ? a_at : a_line)) * A_COL;
  b += (cols > 0 ? (ulong)(first_col + b_col) * B_COL : 0) + (ulong)(begin + (B_ALONG_K ? b_at : b_line)) * B_ROW;

  float sum[BLOCKS_M][BLOCKS_N][4];
  clear(sum);
  UNROLLED
  for (int t = 0; t < STAGES - 1; ++t) {
    if (t < tiles) COPY_TILES(t)
    end_of_copies();
  }
  int now = 0, free = STAGES - 1;
  for (int t = 0; t < tiles; ++t) {
    wait_for_copies(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t + STAGES - 1 < tiles) COPY_TILES(free)
    end_of_copies();
    add_tile(sum, left + now * (TM * TK), right + now * (TN * TK), warp_row, warp_col, lane UNIT);
    now = now + 1 == STAGES ? 0 : now + 1;
    free = free + 1 == STAGES ? 0 : free + 1;
  }

  // Sums go through local memory, so that a warp stores whole lines.
  barrier(CLK_LOCAL_MEM_FENCE);
  __local float* kept = (__local float*)&memory[0] + warp * (16 * KEPT_LINE);
  UNROLLED
  for (int i = 0; i < BLOCKS_M; ++i) {
    keep_rows(kept, sum[i], lane);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int four = lane; four < 16 * WARP_COLS / 4; four += 32) {
      const int line = four / (WARP_COLS / 4), at_col = four % (WARP_COLS / 4) * 4;
      const int row = first_row + warp_row + 16 * i + line, first = first_col + warp_col + at_col;
      if (row < M && first < N) {
        const ulong start = base + (ulong)row * N + first;
        float done[4];
        UNROLLED
        for (int n = 0; n < 4; ++n) {
          const int col = first + n;
          float v = kept[line * KEPT_LINE + at_col + n];
          if (N % 4 == 0 || col < N) {
            const ulong at = start + n;
#if SPLITS > 1
            sums[at] = v;
#else
            EPILOGUE
#if N % 4 != 0
            store_real(c, at, v);
#endif
#endif
          }
          done[n] = v;
        }
#if SPLITS == 1 && N % 4 == 0
        store_real4(c, start, (float4)(done[0], done[1], done[2], done[3]));
#endif
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
