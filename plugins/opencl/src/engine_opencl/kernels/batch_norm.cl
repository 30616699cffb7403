__kernel void batch_norm(__global const real* restrict x, __global const real* restrict scale,
                         __global const real* restrict shift, __global const real* restrict mean,
                         __global const real* restrict variance, __global real* restrict y, const float epsilon) {
  const int c = get_global_id(1);
  const ulong at = (get_global_id(2) * C + c) * (ulong)PIXELS + get_global_id(0);
  const float factor = load_real(scale, c) / sqrt(load_real(variance, c) + epsilon);
  store_real(y, at, (load_real(x, at) - load_real(mean, c)) * factor + load_real(shift, c));
}
