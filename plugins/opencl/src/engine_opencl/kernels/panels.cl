// C = A B for CPUs: a work group has ROWS rows by LANES columns, an item one column, so that the compiler makes vectors
// of items. A lies in panels [M / ROWS][K][ROWS]: an inner step reads ROWS neighbouring numbers that all items share.
// A row of B is a channel seen through one of TAPS offsets: 1 for a product, the kernel's elements for a convolution.
#if TAPS > 1
__constant int offsets[TAPS] = {OFFSETS};
#endif

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void panels(__global const stored_LEFT* restrict a,
                                                                        __global const stored_RIGHT* restrict b,
                                                                        __global real* restrict c
#if BIAS
                                                                        , __global const real* restrict bias
#endif
#if RESIDUAL
                                                                        , __global const real* restrict residual
#endif
) {
  const int panel = get_group_id(0), tile = get_group_id(1), batch = get_group_id(2);
  // The last tile of an operand that ends with its last column begins earlier, and stores only what is its own.
  const int start = OVERLAP ? min(tile * LANES, N - LANES) : tile * LANES;
  const int place = start + (int)get_local_id(0);
  a += ((ulong)(batch % A_BATCHES) * PANELS + panel) * ((ulong)CHANNELS * TAPS * ROWS);
  b += (ulong)(batch % B_BATCHES) * B_BATCH + (ulong)tile * B_TILE + (B_TILE ? (int)get_local_id(0) : place) + B_OFFSET;
  float sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) sum[i] = 0.0f;
  for (int channel = 0; channel < CHANNELS; ++channel) {
#if TAPS > 1
    for (int tap = 0; tap < TAPS; ++tap) {
      const float right = load_RIGHT(b, (long)channel * B_ROW + offsets[tap]);
      __global const stored_LEFT* left = a + ((ulong)channel * TAPS + tap) * ROWS;
#else
    {
      const float right = load_RIGHT(b, (long)channel * B_ROW);
      __global const stored_LEFT* left = a + (ulong)channel * ROWS;
#endif
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sum[i] += load_LEFT(left, i) * right;
    }
  }
  COLUMN
  if (place < tile * LANES || !is_stored) return;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (panel * ROWS + i < M) {
      const ulong at = ((ulong)batch * M + panel * ROWS + i) * C_ROW + col;
      const int row = (batch % A_BATCHES) * BIAS_BATCH + panel * ROWS + i;
      float v = sum[i];
      EPILOGUE
      store_real(c, at, v);
    }
  }
}
