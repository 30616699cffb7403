// The windows of a convolution as columns [images, channels, taps, positions], with each tap moved by `offset` [images,
// offset groups, taps, 2, positions] and weighted by `mask` [images, offset groups, taps, positions]. Elements between
// pixels are interpolated linearly; elements beyond the map are zeros. An item finds the pixels around a tap once for
// CHANNELS channels of an offset group; neighbouring items are neighbouring positions.

// The pixels before and after a place, or -1 beyond the map, and their weights.
inline void find_pixels(float place, int length, int* at, float* weight) {
  const float below = floor(place), t = place - below;
  for (int i = 0; i < 2; ++i) {
    const float pixel = below + i;
    at[i] = pixel >= 0.0f && pixel < length ? min((int)pixel, length - 1) : -1;  // nor NaN
    weight[i] = i ? t : 1.0f - t;
  }
}

__kernel void deform_columns(__global const real* restrict x, __global const real* restrict offset,
#if MASK
                             __global const real* restrict mask,
#endif
                             __global real* restrict columns, const int first_image) {
  const ulong place = get_global_id(0);
  const int block = get_global_id(1) % BLOCKS, moved = get_global_id(1) / BLOCKS;
  const int tap = moved % TAPS, group = moved / TAPS;
  const ulong image = get_global_id(2), given = image + first_image;
  const ulong move = (given * (OFFSET_GROUPS * TAPS) + moved) * (2 * PLACES) + place;
  int rows[2], cols[2];
  float row_weights[2], col_weights[2];
  find_pixels(load_real(offset, move) + (float)((int)(place / OW) * SH - PH + tap / KW * LH), IH, rows, row_weights);
  find_pixels(load_real(offset, move + PLACES) + (float)((int)(place % OW) * SW - PW + tap % KW * LW), IW, cols,
              col_weights);
  long at[4];
  float weight[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int row = rows[k / 2], col = cols[k % 2];
    at[k] = row < 0 || col < 0 ? -1 : (long)row * IW + col;
    weight[k] = row_weights[k / 2] * col_weights[k % 2];
  }
#if MASK
  const float factor = load_real(mask, (given * (OFFSET_GROUPS * TAPS) + moved) * PLACES + place);
#else
  const float factor = 1.0f;
#endif
  const int first = group * GROUP_CHANNELS + block * CHANNELS, last = min(first + CHANNELS, (group + 1) * GROUP_CHANNELS);
  for (int c = first; c < last; ++c) {
    const ulong map = (given * C + c) * ((ulong)IH * IW);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += at[k] < 0 ? 0.0f : weight[k] * load_real(x, map + at[k]);
    store_real(columns, ((image * C + c) * TAPS + tap) * PLACES + place, sum * factor);
  }
}
