// C = A B for CPUs: an item computes PANELS * ROWS rows by VECTORS * WIDTH columns, accumulating ROWS rows at a time in
// vector registers. DEPTH rows of B are copied to its private memory, i.e. the first-level cache, while all rows of the
// item use them: the source of B, a matrix or a convolution's input, is read once for each block of rows. The columns
// of an item are SEGMENTS runs of LANES neighbours; those of a convolution end with their row of the result. Lengths that
// few statements need are arguments, so that products of many shapes share a kernel.
#define TILE (VECTORS * WIDTH)
#define SEGMENTS (TILE / LANES)
typedef JOIN(float, WIDTH) vector;

#if TAPS
__constant int tap_d[TAPS] = {TAP_D}, tap_h[TAPS] = {TAP_H}, tap_w[TAPS] = {TAP_W};

// DEPTH / TAPS channels through all taps for each of the results, with zeros outside the input.
void fetch(__global const stored_RIGHT* b, const ulong start, const int first, const int channels, const int* d,
           const int* h, const int* w, const int* count, float* right) {
  for (int tap = 0; tap < TAPS; ++tap) {
    for (int g = 0; g < SEGMENTS; ++g) {
      float* to = right + tap * TILE + g * LANES;
      const int id = d[g] + tap_d[tap], ih = h[g] + tap_h[tap], iw = w[g] + tap_w[tap];
      if (!count[g] || id < 0 || id >= ID || ih < 0 || ih >= IH || iw >= IW || iw + (LANES - 1) * SW < 0) {
        for (int k = 0; k < channels; ++k) put_lanes((lanes)(0.0f), to + k * (TAPS * TILE));
        continue;
      }
      long at = (long)start + (long)first * (ID * IH * IW) + ((long)id * IH + ih) * IW + iw;
      const places place = iw + LANE_NUMBERS * SW;
      const places is_inside = (place >= 0) & (place < IW);
      for (int k = 0; k < channels; ++k, to += TAPS * TILE, at += ID * IH * IW) {
#if SW <= 2
        if (at >= 0 && at + SW * LANES <= B_SIZE) {
          lanes v = load_RIGHT_lanes(b, at);
#if SW == 2
          v = (lanes)(v.even, load_RIGHT_lanes(b, at + LANES).even);
#endif
          put_lanes(is_inside ? v : (lanes)(0.0f), to);
          continue;
        }
#endif
        for (int l = 0; l < LANES; ++l) {
          const int x = iw + l * SW;
          to[l] = x >= 0 && x < IW ? load_RIGHT(b, at + l * SW) : 0.0f;
        }
      }
    }
  }
}
#elif !B_DIRECT
// Several rows of B; columns beyond the last are zeros.
void fetch(__global const stored_RIGHT* b, const ulong start, const int B_PITCH, const int depth, const int* col,
           const int* count, float* right) {
  for (int g = 0; g < SEGMENTS; ++g) {
    float* to = right + g * LANES;
    __global const stored_RIGHT* from = b + start + (ulong)col[g] * B_COL;
#if B_COL == 1
    if (count[g] == LANES) {
      for (int k = 0; k < depth; ++k) put_lanes(load_RIGHT_lanes(from, (ulong)k * B_ROW), to + k * TILE);
      continue;
    }
#endif
    for (int l = 0; l < LANES; ++l) {
      for (int k = 0; k < depth; ++k)
        to[k * TILE + l] = l < count[g] ? load_RIGHT(from, (ulong)l * B_COL + (ulong)k * B_ROW) : 0.0f;
    }
  }
}
#endif

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void blocks(__global const stored_LEFT* restrict a,
                                                                    __global const stored_RIGHT* restrict b,
                                                                    __global real* restrict c ADDED
                                                                    , const int M, const int N, const int K,
                                                                    const int A_ROW, const int B_PITCH, const int PANELS,
                                                                    const ulong A_STEP, const ulong B_STEP,
                                                                    const ulong BIAS_STEP) {
  const int tile = get_global_id(0), block = get_global_id(1);
  const ulong batch = get_global_id(2);
  ulong a_start = 0, b_start = 0, bias_start = 0, r = batch;
  BATCH
  int cols[SEGMENTS], counts[SEGMENTS];
#if TAPS
  int d[SEGMENTS], h[SEGMENTS], w[SEGMENTS];
#endif
  for (int g = 0; g < SEGMENTS; ++g) {
    const int number = tile * SEGMENTS + g;
#if TAPS
    const int first = number % ROW_SEGMENTS * LANES, oh = number / ROW_SEGMENTS % OH, od = number / (ROW_SEGMENTS * OH);
    counts[g] = od < OD ? min(LANES, OW - first) : 0;
    cols[g] = COLUMN;
    d[g] = od * SD, h[g] = oh * SH, w[g] = first * SW;
#else
    cols[g] = number * LANES;
    counts[g] = clamp(N - cols[g], 0, LANES);
#endif
  }
  __attribute__((aligned(64))) float sum[SUM_PANELS * ROWS * TILE];
#if B_DIRECT
#define RIGHT(k, j) load_RIGHT_vector(right, (ulong)(k) * B_ROW + (j) * WIDTH)
#else
#define RIGHT(k, j) *(const vector*)(right + (k) * TILE + (j) * WIDTH)
  __attribute__((aligned(64))) float right[DEPTH * TILE];
#endif
  int begun = 0;
  do {
    const int depth = IS_SPLIT ? min(DEPTH, K - begun) : K;
#if B_DIRECT
    __global const stored_RIGHT* right = b + b_start + (ulong)tile * B_TILE + (ulong)begun * B_ROW;
#elif TAPS
    fetch(b, b_start, begun / TAPS, depth / TAPS, d, h, w, counts, right);
#else
    fetch(b, b_start + (ulong)begun * B_ROW, B_PITCH, depth, cols, counts, right);
#endif
    for (int p = 0; p < PANELS; ++p) {
      const int row = (block * PANELS + p) * ROWS;
      if (row >= M) break;
      float* own = sum + (IS_SPLIT ? p * ROWS * TILE : 0);
      vector s[ROWS][VECTORS];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < VECTORS; ++j)
          s[i][j] = IS_SPLIT && begun ? *(vector*)(own + i * TILE + j * WIDTH) : (vector)(0.0f);
      }
#if A_PACKED
      __global const stored_LEFT* left = a + a_start + ((ulong)(block * PANELS + p) * K + begun) * ROWS;
#define LEFT(i, k) load_LEFT(left, (k) * ROWS + (i))
#else
      __global const stored_LEFT* left[ROWS];
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
        left[i] = a + a_start + (ulong)min(row + i, M - 1) * A_ROW + (ulong)begun * A_COL;
#define LEFT(i, k) load_LEFT(left[i], (ulong)(k) * A_COL)
#endif
      for (int k = 0; k < depth; ++k) {
        vector e[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) e[j] = RIGHT(k, j);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
          const vector scale = LEFT(i, k);
#pragma unroll
          for (int j = 0; j < VECTORS; ++j) s[i][j] += scale * e[j];
        }
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) *(vector*)(own + i * TILE + j * WIDTH) = s[i][j];
      }
      if (IS_SPLIT && begun + DEPTH < K) continue;
      for (int i = 0; i < min(ROWS, M - row); ++i) {
        for (int g = 0; g < SEGMENTS; ++g) {
          const int col = cols[g], count = counts[g];
          const ulong at = (batch * M + row + i) * (ulong)N + col, bias_row = bias_start + row + i;
          if (!count) continue;
          lanes v = get_lanes(own + i * TILE + g * LANES);
          EPILOGUE
          put_real(c, at, C_STEP, count, v);
        }
      }
    }
    begun += DEPTH;
  } while (IS_SPLIT && begun < K);
}
