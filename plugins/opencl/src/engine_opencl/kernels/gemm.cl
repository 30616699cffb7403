// C = A B: one column and ROWS rows per work item; neighbouring items have neighbouring columns, so that they read rows
// of a row-major B together. For CPUs, whose compilers vectorize over work items, and narrow products.
__kernel void gemm(__global const real* restrict a, __global const real* restrict b, __global real* restrict c ADDED) {
  const int col = get_global_id(0);
  const int first = get_global_id(1) * ROWS;
  ulong r = get_global_id(2);
  const ulong base = r * ((ulong)M * N);
  BATCH
  wide_t sum[ROWS];
  ulong start[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    sum[i] = 0;
    start[i] = (ulong)min(first + i, M - 1) * A_ROW;
  }
  for (int k = 0; k < K; ++k) {
    const wide_t right = load_real(b, (ulong)k * B_ROW + (ulong)col * B_COL);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) sum[i] += load_real(a, start[i] + (ulong)k * A_COL) * right;
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int row = first + i;
    if (row < M) {
      const ulong at = base + (ulong)row * N + col;
      wide_t v = sum[i];
      EPILOGUE
      store_real(c, at, v);
    }
  }
}
