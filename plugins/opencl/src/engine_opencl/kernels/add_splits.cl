// Adds the sums of the groups that share the steps of a product or convolution, in a fixed order, and completes the
// results: of TOTAL, in matrices of M rows and N columns.
__kernel void add_splits(__global const float* restrict sums, __global real* restrict c ADDED) {
  const ulong at = get_global_id(0);
  const int col = at % N, row = at / N % M;
  float v = 0.0f;
  for (int split = 0; split < SPLITS; ++split) v += sums[split * TOTAL + at];
  EPILOGUE
  store_real(c, at, v);
}
