// [M, K] by [K, N] of 8-bit integers minus their zero points, per tensor or per row of a, column of b. An item computes
// ROWS rows of a column, and reads each element of b once for them; neighbouring items read neighbouring elements.
__kernel void integer_gemm(__global const A* restrict a, __global const B* restrict b, __global const int* restrict places,
#if A_POINT
                           __global const A* restrict a_zero,
#endif
#if B_POINT
                           __global const B* restrict b_zero,
#endif
#if QUANTIZED
                           __global const stored_SCALE* restrict a_scale, __global const stored_SCALE* restrict b_scale,
                           __global const stored_SCALE* restrict y_scale, __global const Y* restrict y_zero,
#endif
                           __global Y* restrict y) {
  const int column = get_global_id(0), row = get_global_id(1) * ROWS;
  const ulong matrix = get_global_id(2);
  a += (ulong)places[2 * matrix] * ((ulong)M * K);
  b += (ulong)places[2 * matrix + 1] * ((ulong)K * N) + column;
  y += matrix * ((ulong)M * N) + column;
  ulong from[ROWS];
  int point[ROWS], sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int r = min(row + i, M - 1);
    from[i] = (ulong)r * K;
#if A_POINT
    point[i] = a_zero[r * A_POINT_STEP];
#else
    point[i] = 0;
#endif
    sum[i] = 0;
  }
#if B_POINT
  const int other = b_zero[column * B_POINT_STEP];
#else
  const int other = 0;
#endif
  for (int k = 0; k < K; ++k) {
    const int factor = b[(ulong)k * N] - other;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) sum[i] += (a[from[i] + k] - point[i]) * factor;
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int r = row + i;
    if (r >= M) break;
    STORE_SUM((ulong)r * N, sum[i],
              load_SCALE(a_scale, r * A_SCALE_STEP) * load_SCALE(b_scale, column * B_SCALE_STEP) / load_SCALE(y_scale, 0),
              y_zero[0]);
  }
}
