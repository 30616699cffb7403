// A convolution of f16 as an implicit product on matrix units (matrix_unit.cl, with A_ALONG_K and B_ALONG_K 0): weights
// [GM, rows] by the input elements of each row and column; see implicit_gemm.cl, whose parameters it shares. Weights are
// copied to local memory asynchronously, input elements through registers: neighbouring items load, and store,
// neighbouring columns.
#define TILES_N ((COLUMNS + TN - 1) / TN)
#define LEFT_COPIES (TM * TK / (8 * ITEMS))
#define RIGHT_LOADS (TN * TK / ITEMS)
#define ROW_STEP (ITEMS / TN)

// Rows `row`, `row + ROW_STEP` ... of a step of the right matrix, at one column: with the tap `at`, or one tap each.
INLINED void load_inputs(ushort* values, __global const ushort* x, const int4 at, __global const int4* taps,
                         const int tap_count, const int4 place, const int is_column, const int first, const int block,
                         const int row) {
#if BY_CHANNELS
  const int is_read = is_column && is_inside(place, at);
  // One address, from which loads are constant distances away.
  __global const ushort* from = x + (first + at.x + (block * TK + row) * MAP);
  UNROLLED
  for (int i = 0; i < RIGHT_LOADS; ++i)
    values[i] = is_read && (GC % TK == 0 || block * TK + row + i * ROW_STEP < GC) ? from[i * ROW_STEP * MAP] : 0;
#else
  UNROLLED
  for (int i = 0; i < RIGHT_LOADS; ++i) {
    const int r = block * TK + row + i * ROW_STEP;
    const int4 own = taps[min(r, tap_count - 1)];
    values[i] = is_column && r < tap_count && is_inside(place, own) ? x[first + own.x] : 0;
  }
#endif
}

INLINED void copy_weights(__local ushort* left, __global const ushort* w, const int step, const int item) {
  UNROLLED
  for (int i = 0; i < LEFT_COPIES; ++i) {
    const int at = 8 * (i * ITEMS + item);
    copy_elements(8, left + PLACE(at / TM, at % TM, TM), w + (ulong)step * (TK * TM) + at, 8);
  }
}

INLINED void keep_inputs(__local ushort* right, const ushort* values, const int column, const int row) {
  UNROLLED
  for (int i = 0; i < RIGHT_LOADS; ++i) right[PLACE(row + i * ROW_STEP, column, TN)] = values[i];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void matrix_conv(
    __global const real* restrict x_real, __global const real* restrict w_real, __global const int4* restrict taps,
    __global const int4* restrict phases
#if SPLITS > 1
    , __global float* restrict sums
#else
    ADDED, __global real* restrict y
#endif
) {
  __local ushort memory[max_of(2 * (TM + TN) * TK, 2 * KEPT_ELEMENTS)] __attribute__((aligned(16)));
  __local ushort *left = memory, *right = memory + 2 * TM * TK;
  UNIT_MEMORY(ITEMS)
  __global const ushort* x = (__global const ushort*)x_real;
  __global const ushort* w = (__global const ushort*)w_real;
  const int item = get_local_id(0), lane = item % 32, warp = item / 32;
  const int warp_row = warp % WARPS_M * (TM / WARPS_M), warp_col = warp / WARPS_M * WARP_COLS;
  // Concurrent groups share their reads: all rows of some columns.
  const uint number = get_group_id(0), tile_m = number % BLOCKS, part_of_work = number / BLOCKS / TILES_N;
  const int first_row = tile_m * TM, first_column = number / BLOCKS % TILES_N * TN;
  const int split = part_of_work % SPLITS, phase = part_of_work / SPLITS % PHASES;
  const int group = part_of_work / (SPLITS * PHASES);
  // (first step, steps, taps, first tap)
  const int4 part = phases[phase];
  const int begin = (int)((long)part.y * split / SPLITS), end = (int)((long)part.y * (split + 1) / SPLITS);

  const int own_column = item % TN, column = first_column + own_column, row = item / TN;
  const int is_column = COLUMNS % TN == 0 || column < COLUMNS;
  const int4 place = place_of(is_column ? column : 0);
  const int first = first_of(place);
  x += ((ulong)place.x * C + (ulong)group * GC) * MAP;
  w += (((ulong)group * BLOCKS + tile_m) * STEPS + part.x) * (TK * TM);
  taps += part.w;

  float sum[BLOCKS_M][BLOCKS_N][4];
  clear(sum);
  ushort next[RIGHT_LOADS];
  // A step is TK channels of one tap, taps first, or TK rows of any taps and channels.
  int block = BY_CHANNELS && part.z ? begin / part.z : begin, tap = BY_CHANNELS && part.z ? begin % part.z : 0;
  int4 at = BY_CHANNELS && part.z ? taps[tap] : (int4)(0);
  if (begin < end) {
    copy_weights(left, w, begin, item);
    load_inputs(next, x, at, taps, part.z, place, is_column, first, block, row);
    keep_inputs(right, next, own_column, row);
  }
  end_of_copies();
  int now = 0;
  for (int step = begin; step < end; ++step) {
    wait_for_copies(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int has_next = step + 1 < end;
    if (has_next) {
#if BY_CHANNELS
      tap = tap + 1 == part.z ? 0 : tap + 1;
      block += tap == 0;
      at = taps[tap];
#else
      ++block;
#endif
      copy_weights(left + (1 - now) * (TM * TK), w, step + 1, item);
      load_inputs(next, x, at, taps, part.z, place, is_column, first, block, row);
    }
    end_of_copies();
    add_tile(sum, left + now * (TM * TK), right + now * (TN * TK), warp_row, warp_col, lane UNIT);
    now = 1 - now;
    if (has_next) keep_inputs(right + now * (TN * TK), next, own_column, row);
  }

  // Sums go through local memory, so that neighbouring lanes store neighbouring columns.
  barrier(CLK_LOCAL_MEM_FENCE);
  __local float* kept = (__local float*)memory + warp * (16 * KEPT_LINE);
  UNROLLED
  for (int i = 0; i < BLOCKS_M; ++i) {
    keep_rows(kept, sum[i], lane);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int c = lane; c < WARP_COLS; c += 32) {
      const int own = first_column + warp_col + c;
      const int4 where = place_of(min(own, COLUMNS - 1));
      const int col = own < COLUMNS ? result_of(where, phase) : -1;
      for (int line = 0; line < 16; ++line) {
        const int row_in_group = first_row + warp_row + 16 * i + line;
        if (col >= 0 && row_in_group < GM) {
          const int row = group * GM + row_in_group;
          const ulong at = ((ulong)where.x * M + row) * SIZE + col;
          float v = kept[line * KEPT_LINE + c];
#if SPLITS > 1
          sums[split * TOTAL + at] = v;
#else
          EPILOGUE
          store_real(y, at, v);
#endif
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
