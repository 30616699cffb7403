// [M, K] by [K, N] of integers modulo 2^bits: W is unsigned, so that sums wrap. An item computes ROWS rows of a column,
// and reads each element of b once for them; neighbouring items read neighbouring elements. FIRST_ELEMENTS adds the
// offsets of the batch's matrices to a and b.
__kernel void whole_gemm(__global const W* restrict a, __global const W* restrict b, __global W* restrict y) {
  const ulong column = get_global_id(0), row = get_global_id(1) * ROWS, matrix = get_global_id(2);
  FIRST_ELEMENTS
  b += column;
  y += matrix * ((ulong)M * N) + column;
  ulong from[ROWS];
  W sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    from[i] = min(row + i, (ulong)(M - 1)) * K;
    sum[i] = 0;
  }
  for (ulong k = 0; k < K; ++k) {
    const W factor = b[k * N];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) sum[i] += a[from[i] + k] * factor;
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
    if (row + i < M) y[(row + i) * N] = sum[i];
}
