__kernel void batch_norm(__global const float* restrict x, __global const float* restrict scale,
                         __global const float* restrict shift, __global const float* restrict mean,
                         __global const float* restrict variance, __global float* restrict y, const float epsilon) {
  const int c = get_global_id(1);
  const ulong at = (get_global_id(2) * C + c) * (ulong)PIXELS + get_global_id(0);
  y[at] = (x[at] - mean[c]) * (scale[c] / sqrt(variance[c] + epsilon)) + shift[c];
}
