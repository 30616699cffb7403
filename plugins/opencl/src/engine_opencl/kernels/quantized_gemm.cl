// [M, K] by [K, N]. Weights are words of 4 rows: [K4, N]. An item computes ROWS rows of a column, and reads each word of
// the weights once for them; neighbouring items read neighbouring words.
inline uint word_of(__global const X* restrict x, int k) {
#if K % 4 == 0
  return *(__global const uint*)(x + k);
#else
  uint word = 0;
  for (int i = 0; i < 4 && k + i < K; ++i) word |= (uint)as_uchar(x[k + i]) << (8 * i);
  return word;
#endif
}

__kernel void quantized_gemm(__global const X* restrict x, __global const uint* restrict w,
                             __global const int* restrict w_sum, __global const float* restrict scale,
                             __global const float* restrict x_scale, __global const X* restrict x_zero PARAMETERS,
                             __global Y* restrict y) {
  const int channel = get_global_id(0), row = get_global_id(1) * ROWS;
  int sum[ROWS], total[ROWS];
  ulong from[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    sum[i] = total[i] = 0;
    from[i] = (ulong)min(row + i, M - 1) * K;
  }
  for (int k = 0; k < K4; ++k) {
    const uint weights = w[(ulong)k * N + channel];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const uint word = word_of(x + from[i], 4 * k);
      sum[i] += dot_of(word, weights);
#if W_POINT
      total[i] += dot_of(word, ONES);
#endif
    }
  }
  const int zero = x_zero[0];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (row + i >= M) break;
    const ulong at = (ulong)(row + i) * N + channel;
    float v = (float)CENTERED(sum[i], total[i], zero, channel) * (x_scale[0] * scale[channel]);
    FINISH
  }
}
