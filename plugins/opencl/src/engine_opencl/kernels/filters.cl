// Weights of a convolution as blocks [groups][GM / WIDTH][ROWS][WIDTH], padded with zeros. A row's number is its offset
// from a channel's first weight; negative for zeros.
__kernel void filters(__global const real* restrict x, __global const int* restrict rows, __global real* restrict y) {
  const int i = get_global_id(0) % WIDTH, row = get_global_id(0) / WIDTH;
  const int block = get_global_id(1) % BLOCKS, group = get_global_id(1) / BLOCKS;
  const int channel = block * WIDTH + i, from = rows[row];
  const ulong at = (ulong)group * GROUP_STEP + (ulong)channel * CHANNEL_STEP + max(from, 0);
  store_real(y, (get_global_id(1) * ROWS + row) * WIDTH + i, channel < GM && from >= 0 ? load_real(x, at) : 0.0f);
}
