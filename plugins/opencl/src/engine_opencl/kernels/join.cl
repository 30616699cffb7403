// Adds the partial sums of a split depth in order, and applies the epilogue.
__kernel void join(__global const float* restrict x,
#if BIAS
                   __global const real* restrict bias,
#endif
#if RESIDUAL
                   __global const real* restrict residual,
#endif
                   __global real* restrict y) {
  const ulong at = get_global_id(0);
  const int row = (int)(at / SIZE % M), col = (int)(at % SIZE);
  float v = x[at];
  for (int i = 1; i < SPLITS; ++i) v += x[i * TOTAL + at];
  EPILOGUE
  store_real(y, at, v);
}
