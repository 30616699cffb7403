// C = A B for a C with few (SHORT) rows or columns: the matrix of the other, long side is read once, at memory speed.
// An item accumulates its part of K for WIDTH elements, or for one element WIDTH steps at a time; then the items' sums
// are added in local memory. `a`, `b`: the long and the short operand. ALONG_K: the long operand's neighbours are along
// K: LANES items share a row of it, and a group has LINES rows. Otherwise LANES items are side by side across its rows,
// and LINES of them share the steps along K.
#if ALONG_K
#define COUNT LINES
#define SHARES LANES
#define OWN 1
#else
#define COUNT (LANES * WIDTH)
#define SHARES LINES
#define OWN WIDTH
#endif

__kernel __attribute__((reqd_work_group_size(LANES * LINES, 1, 1))) void narrow(__global const real* restrict a,
                                                                                __global const real* restrict b,
                                                                                __global real* restrict c ADDED
) {
  // The pitch is not a power of two, because the final sums read columns.
  __local float parts[SHORT][SHARES][COUNT + 1];
  const int item = get_local_id(0), lane = item % LANES, line = item / LANES;
  const int share = ALONG_K ? lane : line, own = ALONG_K ? line : lane * WIDTH;
  const uint group = get_group_id(0);
  const int first = (int)(group % ((LONG + COUNT - 1) / COUNT)) * COUNT;
  ulong r = group / ((LONG + COUNT - 1) / COUNT);
  const ulong base = r * ((ulong)LONG * SHORT);
  BATCH
  float sum[SHORT][OWN];
#pragma unroll
  for (int s = 0; s < SHORT; ++s)
#pragma unroll
    for (int j = 0; j < OWN; ++j) sum[s][j] = 0.0f;
  if (first + own < LONG) {
    a += (ulong)(first + own) * LONG_STEP;
#if ALONG_K
#pragma unroll 4
    for (int k = lane * WIDTH; k < K; k += LANES * WIDTH) {
      float v[WIDTH];
      fetch_reals(WIDTH)(a + k, v);
#pragma unroll
      for (int s = 0; s < SHORT; ++s) {
        float right[WIDTH];
#if SHORT_IS_VECTOR
        fetch_reals(WIDTH)(b + (ulong)s * SHORT_STEP + k, right);
#else
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) right[j] = load_real(b, (ulong)s * SHORT_STEP + (ulong)(k + j) * SHORT_K);
#endif
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum[s][0] += v[j] * right[j];
      }
    }
#else
#pragma unroll 4
    for (int k = line; k < K; k += LINES) {
      float v[WIDTH];
      fetch_reals(WIDTH)(a + (ulong)k * LONG_K, v);
#pragma unroll
      for (int s = 0; s < SHORT; ++s) {
        const float right = load_real(b, (ulong)s * SHORT_STEP + (ulong)k * SHORT_K);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum[s][j] += v[j] * right;
      }
    }
#endif
  }
#pragma unroll
  for (int s = 0; s < SHORT; ++s)
#pragma unroll
    for (int j = 0; j < OWN; ++j) parts[s][share][own + j] = sum[s][j];
#pragma unroll
  for (int apart = SHARES / 2; apart > 0; apart /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (share < apart)
#pragma unroll
      for (int s = 0; s < SHORT; ++s)
#pragma unroll
        for (int j = 0; j < OWN; ++j) parts[s][share][own + j] += parts[s][share + apart][own + j];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = item; n < SHORT * COUNT; n += LANES * LINES) {
    const int s = n / COUNT, place = n % COUNT;
    if (first + place >= LONG) continue;
    const int row = ROWS_ARE_SHORT ? s : first + place, col = ROWS_ARE_SHORT ? first + place : s;
    const ulong at = base + (ulong)row * (ROWS_ARE_SHORT ? LONG : SHORT) + col;
    float v = parts[s][0][place];
    EPILOGUE
    store_real(c, at, v);
  }
}
