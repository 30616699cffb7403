// A matrix as blocks [LENGTH / WIDTH][K][WIDTH], padded with zeros: the elements that a product reads in a step are
// contiguous. Neighbouring items follow the axis whose elements are neighbours.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pack(__global const real* restrict x,
                                                                      __global float* restrict y) {
  const int block = get_global_id(1);
  ulong r = get_global_id(2);
  y += (r * BLOCKS + block) * ((ulong)K * WIDTH);
  ulong source = 0;
  BATCH
  x += source + (ulong)block * WIDTH * STEP;
#if K_STEP == 1
  const int k = get_global_id(0);
  if (k >= K) return;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) y[k * WIDTH + i] = block * WIDTH + i < LENGTH ? load_real(x, (ulong)i * STEP + k) : 0.0f;
#else
  const int i = get_local_id(0), first = (int)get_group_id(0) * DEPTH;
  const int is_inside = block * WIDTH + i < LENGTH;
  for (int k = first; k < min(first + DEPTH, K); ++k)
    y[k * WIDTH + i] = is_inside ? load_real(x, (ulong)i * STEP + (ulong)k * K_STEP) : 0.0f;
#endif
}
