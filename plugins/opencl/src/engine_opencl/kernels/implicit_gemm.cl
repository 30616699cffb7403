// A convolution as an implicit product, for GPUs: weights [GM, rows] by the input elements of each row and column. A
// work group computes TILE_M channels of TILE_N columns from local memory, an item RM x RN of them in registers. The
// operands of the next step are loaded from global memory during the current one, into the other half of local memory.
// Neighbouring items load, and store, neighbouring columns; those of all images are consecutive.
#define ITEMS (LANES_M * LANES_N)
#define TILES_N ((COLUMNS + TILE_N - 1) / TILE_N)
#define RM (TILE_M / LANES_M)
#define RN (TILE_N / LANES_N)
#define LEFT_LOADS (TILE_M * DEPTH / (4 * ITEMS))
#define RIGHT_LOADS (TILE_N * DEPTH / ITEMS)
#define ROW_STEP (ITEMS / TILE_N)

// Rows `row`, `row + ROW_STEP` ... of a step of the right matrix, at one column: with the tap `at`, or one tap each.
inline void load_right(float* values, __global const real* x, const int4 at,
                       __global const int4* taps, const int tap_count, const int4 place, const int is_column,
                       const int first, const int block, const int row) {
#if BY_CHANNELS
  const int is_read = is_column && is_inside(place, at);
  const int from = first + at.x + (block * DEPTH + row) * MAP;
#pragma unroll
  for (int i = 0; i < RIGHT_LOADS; ++i)
    values[i] = is_read && (GC % DEPTH == 0 || block * DEPTH + row + i * ROW_STEP < GC)
                    ? load_real(x, from + i * ROW_STEP * MAP) : 0.0f;
#else
#pragma unroll
  for (int i = 0; i < RIGHT_LOADS; ++i) {
    const int r = block * DEPTH + row + i * ROW_STEP;
    const int4 own = taps[min(r, tap_count - 1)];
    values[i] = is_column && r < tap_count && is_inside(place, own) ? load_real(x, first + own.x) : 0.0f;
  }
#endif
}

inline void load_left(float4* values, __global const real* w, const int step, const int item) {
#pragma unroll
  for (int i = 0; i < LEFT_LOADS; ++i)
    values[i] = load_real4(w, (ulong)step * (DEPTH * TILE_M) + 4 * (i * ITEMS + item));
}

inline void keep(__local float4* left, __local float* right, const float4* next_left, const float* next_right,
                 const int item) {
#pragma unroll
  for (int i = 0; i < LEFT_LOADS; ++i) left[i * ITEMS + item] = next_left[i];
#pragma unroll
  for (int i = 0; i < RIGHT_LOADS; ++i) right[i * ITEMS + item] = next_right[i];
}

inline void multiply(__local const float4* left, __local const float* right, float sum[RM][RN], const int lane_m,
                     const int lane_n) {
  // With more unrolling, compilers prefetch all of local memory and spill registers.
#pragma unroll 4
  for (int k = 0; k < DEPTH; ++k) {
    float l[RM], r[RN];
#pragma unroll
    for (int i = 0; i < RM / 4; ++i) {
      const float4 four = left[(k * TILE_M + lane_m * RM) / 4 + i];
      l[4 * i] = four.x;
      l[4 * i + 1] = four.y;
      l[4 * i + 2] = four.z;
      l[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < RN; ++j) r[j] = right[k * TILE_N + j * LANES_N + lane_n];
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
      for (int j = 0; j < RN; ++j) sum[i][j] += l[i] * r[j];
  }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void implicit_gemm(
    __global const real* restrict x, __global const real* restrict w, __global const int4* restrict taps,
    __global const int4* restrict phases
#if SPLITS > 1
    , __global float* restrict sums
#else
    ADDED, __global real* restrict y
#endif
) {
  __local float4 left[2][DEPTH * TILE_M / 4];
  __local float right[2][DEPTH * TILE_N];
  const int item = get_local_id(0), lane_n = item % LANES_N, lane_m = item / LANES_N;
  // Concurrent groups share their reads: all rows of some columns.
  const uint number = get_group_id(0), tile_m = number % BLOCKS, part_of_work = number / BLOCKS / TILES_N;
  const int first_row = tile_m * TILE_M, first_column = number / BLOCKS % TILES_N * TILE_N;
  const int split = part_of_work % SPLITS, phase = part_of_work / SPLITS % PHASES;
  const int group = part_of_work / (SPLITS * PHASES);
  // (first step, steps, taps, first tap)
  const int4 part = phases[phase];
  const int begin = (int)((long)part.y * split / SPLITS), end = (int)((long)part.y * (split + 1) / SPLITS);

  const int column = first_column + item % TILE_N, row = item / TILE_N;
  const int is_column = COLUMNS % TILE_N == 0 || column < COLUMNS;
  const int4 place = place_of(is_column ? column : 0);
  const int first = first_of(place);
  x += ((ulong)place.x * C + (ulong)group * GC) * MAP;
  w += (((ulong)group * BLOCKS + tile_m) * STEPS + part.x) * (DEPTH * TILE_M);

  taps += part.w;

  float4 next_left[LEFT_LOADS];
  float next_right[RIGHT_LOADS], sum[RM][RN];
#pragma unroll
  for (int i = 0; i < RM; ++i)
#pragma unroll
    for (int j = 0; j < RN; ++j) sum[i][j] = 0.0f;
  // A step is DEPTH channels of one tap, taps first, or DEPTH rows of any taps and channels.
  int block = BY_CHANNELS && part.z ? begin / part.z : begin, tap = BY_CHANNELS && part.z ? begin % part.z : 0;
  int4 at = BY_CHANNELS && part.z ? taps[tap] : (int4)(0);
  if (begin < end) {
    load_left(next_left, w, begin, item);
    load_right(next_right, x, at, taps, part.z, place, is_column, first, block, row);
    keep(left[0], right[0], next_left, next_right, item);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = begin; step < end; ++step) {
    const int used = (step - begin) % 2;
    // The last step loads its data again, which is cheaper than a branch.
    if (step + 1 < end) {
#if BY_CHANNELS
      tap = tap + 1 == part.z ? 0 : tap + 1;
      block += tap == 0;
      at = taps[tap];
#else
      ++block;
#endif
    }
    load_left(next_left, w, min(step + 1, end - 1), item);
    load_right(next_right, x, at, taps, part.z, place, is_column, first, block, row);
    multiply(left[used], right[used], sum, lane_m, lane_n);
    keep(left[1 - used], right[1 - used], next_left, next_right, item);
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#pragma unroll
  for (int j = 0; j < RN; ++j) {
    const int own = first_column + j * LANES_N + lane_n;
    if (own >= COLUMNS) continue;
    const int4 where = place_of(own);
    const int col = result_of(where, phase);
    if (col < 0) continue;
#pragma unroll
    for (int i = 0; i < RM; ++i) {
      const int row_in_group = first_row + lane_m * RM + i;
      if (row_in_group >= GM) continue;
      const int row = group * GM + row_in_group;
      const ulong at = ((ulong)where.x * M + row) * SIZE + col;
      float v = sum[i][j];
#if SPLITS > 1
      sums[split * TOTAL + at] = v;
#else
      EPILOGUE
      store_real(y, at, v);
#endif
    }
  }
}
