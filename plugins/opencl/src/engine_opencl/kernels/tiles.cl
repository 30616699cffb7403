// C = A B for GPUs: a work group computes TM x TN elements from tiles of TK steps in local memory, an item RM x RN of
// them in registers, in blocks of 4 x 4, so that local memory is read four elements at a time. The next tiles are
// loaded to registers while the current ones are multiplied; with BUFFERS == 2, one barrier per tile suffices.
// A_ALONG_K, B_ALONG_K: which axis of an operand has neighbouring elements, A_WIDTH or B_WIDTH per load. With SPLITS >
// 1, groups share the steps along K, and `c` receives their sums; see add_splits.cl.
#define ITEMS (ROW_ITEMS * COL_ITEMS)
#define RM (TM / ROW_ITEMS)
#define RN (TN / COL_ITEMS)
#define TILES_M ((M + TM - 1) / TM)
#define TILES_N ((N + TN - 1) / TN)
// Consecutive rows start 4 banks apart, and stay aligned.
#define PITCH_A (TM + 4)
#define PITCH_B (TN + 4)
#define A_LOADS (TM * TK / (ITEMS * A_WIDTH))
#define B_LOADS (TN * TK / (ITEMS * B_WIDTH))
// Further loads of an item follow along the other axis.
#define A_LINE ((A_ALONG_K ? TK : TM) / A_WIDTH)
#define B_LINE ((B_ALONG_K ? TK : TN) / B_WIDTH)
#define A_NEXT (ITEMS / A_LINE)
#define B_NEXT (ITEMS / B_LINE)

// `a`, `b`: the source of the item's first load; `rows`, `cols`, `steps`: the number remaining from there.
inline void fetch_a(__global const real* a, int rows, int steps, float v[A_LOADS][A_WIDTH]) {
#pragma unroll
  for (int i = 0; i < A_LOADS; ++i) {
    const int row = A_ALONG_K ? i * A_NEXT : 0, k = A_ALONG_K ? 0 : i * A_NEXT;
    if ((M % TM == 0 || row < rows) && (K % TK == 0 || k < steps)) {
      fetch_reals(A_WIDTH)(a + (ulong)row * A_ROW + (ulong)k * A_COL, v[i]);
    } else {
#pragma unroll
      for (int j = 0; j < A_WIDTH; ++j) v[i][j] = 0.0f;
    }
  }
}

inline void fetch_b(__global const real* b, int cols, int steps, float v[B_LOADS][B_WIDTH]) {
#pragma unroll
  for (int i = 0; i < B_LOADS; ++i) {
    const int col = B_ALONG_K ? i * B_NEXT : 0, k = B_ALONG_K ? 0 : i * B_NEXT;
    if ((N % TN == 0 || col < cols) && (K % TK == 0 || k < steps)) {
      fetch_reals(B_WIDTH)(b + (ulong)col * B_COL + (ulong)k * B_ROW, v[i]);
    } else {
#pragma unroll
      for (int j = 0; j < B_WIDTH; ++j) v[i][j] = 0.0f;
    }
  }
}

// `left`, `right`: the target of the item's first load.
inline void keep_a(__local factor_t* left, float v[A_LOADS][A_WIDTH]) {
#pragma unroll
  for (int i = 0; i < A_LOADS; ++i) {
#if A_ALONG_K
#pragma unroll
    for (int j = 0; j < A_WIDTH; ++j) left[j * PITCH_A + i * A_NEXT] = to_factor(v[i][j]);
#else
    keep_factors(A_WIDTH)(left + i * A_NEXT * PITCH_A, v[i]);
#endif
  }
}

inline void keep_b(__local factor_t* right, float v[B_LOADS][B_WIDTH]) {
#pragma unroll
  for (int i = 0; i < B_LOADS; ++i) {
#if B_ALONG_K
#pragma unroll
    for (int j = 0; j < B_WIDTH; ++j) right[j * PITCH_B + i * B_NEXT] = to_factor(v[i][j]);
#else
    keep_factors(B_WIDTH)(right + i * B_NEXT * PITCH_B, v[i]);
#endif
  }
}

// `left`, `right`: the item's first row and column.
inline void add_products(__local const factor_t* left, __local const factor_t* right, int steps,
                         factor4_t sum[RM][RN / 4]) {
  // With more unrolling, compilers prefetch all of local memory and spill registers.
#pragma unroll 4
  for (int k = 0; k < steps; ++k) {
    factor4_t l[RM / 4], t[RN / 4];
#pragma unroll
    for (int i = 0; i < RM / 4; ++i) l[i] = *(__local const factor4_t*)(left + k * PITCH_A + i * (ROW_ITEMS * 4));
#pragma unroll
    for (int j = 0; j < RN / 4; ++j) t[j] = *(__local const factor4_t*)(right + k * PITCH_B + j * (COL_ITEMS * 4));
#pragma unroll
    for (int i = 0; i < RM / 4; ++i) {
#pragma unroll
      for (int j = 0; j < RN / 4; ++j) {
        sum[4 * i][j] += l[i].s0 * t[j];
        sum[4 * i + 1][j] += l[i].s1 * t[j];
        sum[4 * i + 2][j] += l[i].s2 * t[j];
        sum[4 * i + 3][j] += l[i].s3 * t[j];
      }
    }
  }
}

inline void multiply(__local const factor_t* left, __local const factor_t* right, float4 sum[RM][RN / 4]) {
#if HALF_PRODUCTS
  for (int k = 0; k < TK; k += RUN_STEPS) {
    factor4_t part[RM][RN / 4];
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
      for (int j = 0; j < RN / 4; ++j) part[i][j] = (factor4_t)(0.0h);
    add_products(left + k * PITCH_A, right + k * PITCH_B, min(TK, RUN_STEPS), part);
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
      for (int j = 0; j < RN / 4; ++j) sum[i][j] += convert_float4(part[i][j]);
  }
#else
  add_products(left, right, TK, sum);
#endif
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void tiles(__global const real* restrict a,
                                                                       __global const real* restrict b,
#if SPLITS > 1
                                                                       __global float* restrict sums
#else
                                                                       __global real* restrict c ADDED
#endif
) {
  __local factor_t left[BUFFERS][TK * PITCH_A] __attribute__((aligned(16)));
  __local factor_t right[BUFFERS][TK * PITCH_B] __attribute__((aligned(16)));
  const int item = get_local_id(0), x = item % COL_ITEMS, y = item / COL_ITEMS;
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

  const int a_fast = item % A_LINE * A_WIDTH, a_slow = item / A_LINE;
  const int a_row = A_ALONG_K ? a_slow : a_fast, a_k = A_ALONG_K ? a_fast : a_slow;
  const int b_fast = item % B_LINE * B_WIDTH, b_slow = item / B_LINE;
  const int b_col = B_ALONG_K ? b_slow : b_fast, b_k = B_ALONG_K ? b_fast : b_slow;
  a += (ulong)(first_row + a_row) * A_ROW + (ulong)(begin + a_k) * A_COL;
  b += (ulong)(first_col + b_col) * B_COL + (ulong)(begin + b_k) * B_ROW;
  const int rows = M - first_row - a_row, cols = N - first_col - b_col;
  const int a_place = a_k * PITCH_A + a_row, b_place = b_k * PITCH_B + b_col;

  float a_next[A_LOADS][A_WIDTH], b_next[B_LOADS][B_WIDTH];
  float4 sum[RM][RN / 4];
#pragma unroll
  for (int i = 0; i < RM; ++i)
#pragma unroll
    for (int j = 0; j < RN / 4; ++j) sum[i][j] = (float4)(0.0f);

  fetch_a(a, rows, end - begin - a_k, a_next);
  fetch_b(b, cols, end - begin - b_k, b_next);
#if BUFFERS == 2
  keep_a(left[0] + a_place, a_next);
  keep_b(right[0] + b_place, b_next);
  barrier(CLK_LOCAL_MEM_FENCE);
  int now = 0;
#endif
  for (int k = begin; k < end; k += TK) {
    const int has_next = k + TK < end;
#if BUFFERS == 1
    keep_a(left[0] + a_place, a_next);
    keep_b(right[0] + b_place, b_next);
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    if (has_next) {
      a += (ulong)TK * A_COL;
      b += (ulong)TK * B_ROW;
      fetch_a(a, rows, end - k - TK - a_k, a_next);
      fetch_b(b, cols, end - k - TK - b_k, b_next);
    }
#if BUFFERS == 2
    multiply(left[now] + y * 4, right[now] + x * 4, sum);
    now ^= 1;
    if (has_next) {
      keep_a(left[now] + a_place, a_next);
      keep_b(right[now] + b_place, b_next);
    }
#else
    multiply(left[0] + y * 4, right[0] + x * 4, sum);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#pragma unroll
  for (int i = 0; i < RM; ++i) {
    const int row = first_row + (i / 4 * ROW_ITEMS + y) * 4 + i % 4;
    if (M % TM != 0 && row >= M) continue;
#pragma unroll
    for (int j = 0; j < RN / 4; ++j) {
      const int first = first_col + (j * COL_ITEMS + x) * 4;
      const float found[4] = {sum[i][j].s0, sum[i][j].s1, sum[i][j].s2, sum[i][j].s3};
      const ulong start = base + (ulong)row * N + first;
#if SPLITS > 1
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (N % TN == 0 || first + n < N) sums[start + n] = found[n];
#else
      float done[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int col = first + n;
        if (N % TN == 0 || col < N) {
          const ulong at = start + n;
          float v = found[n];
          EPILOGUE
          done[n] = v;
#if N % 4 != 0
          store_real(c, at, v);
#endif
        }
      }
#if N % 4 == 0
      if (N % TN == 0 || first < N) store_real4(c, start, (float4)(done[0], done[1], done[2], done[3]));
#endif
#endif
    }
  }
}
