// A convolution. Weights are words of 4 input channels, and of CHANNELS neighbouring output channels:
// [groups, blocks, taps, C4, CHANNELS]. An item computes CHANNELS channels of a group at one position; neighbouring items
// are spatial neighbours, so each of the four bytes of a word is read by neighbours, too. Padding counts as the zero
// point of x.
__kernel void quantized_conv(__global const X* restrict x, __global const uint* restrict w,
                             __global const int* restrict w_sum, __global const float* restrict scale,
                             __global const float* restrict x_scale, __global const X* restrict x_zero PARAMETERS,
                             __global Y* restrict y) {
  const int place = get_global_id(0);
  const int group = get_global_id(1) / BLOCKS, block = get_global_id(1) % BLOCKS;
  const ulong image = get_global_id(2);
  const int ow = place % OW, oh = place / OW % OH, od = place / (OW * OH);
  x += (image * GROUPS + group) * ((ulong)C * ID * IH * IW);
  w += (ulong)get_global_id(1) * (KD * KH * KW * C4 * CHANNELS);
  const int zero = x_zero[0];
  const uint outside = (uint)as_uchar(x_zero[0]) * ONES;
  int sum[CHANNELS], total = 0;
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) sum[i] = 0;
  for (int kd = 0; kd < KD; ++kd) {
    const int id = od * SD - PD + kd * LD;
    for (int kh = 0; kh < KH; ++kh) {
      const int ih = oh * SH - PH + kh * LH;
      for (int kw = 0; kw < KW; ++kw, w += C4 * CHANNELS) {
        const int iw = ow * SW - PW + kw * LW;
        const int is_inside = id >= 0 && id < ID && ih >= 0 && ih < IH && iw >= 0 && iw < IW;
        __global const uchar* from = (__global const uchar*)x + (is_inside ? ((ulong)id * IH + ih) * IW + iw : 0);
        for (int c = 0; c < C4; ++c) {
          uint word = outside;
          if (is_inside) {
            word = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (C % 4 == 0 || 4 * c + i < C) word |= (uint)from[(ulong)(4 * c + i) * (ID * IH * IW)] << (8 * i);
            }
          }
#if W_POINT
          total += dot_of(word, 4 * c + 4 <= C ? ONES : ONES >> (8 * (4 * c + 4 - C)));
#endif
#pragma unroll
          for (int i = 0; i < CHANNELS; ++i) sum[i] += dot_of(word, w[c * CHANNELS + i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) {
    if (block * CHANNELS + i >= GM) break;
    const int channel = group * GM + block * CHANNELS + i;
    const ulong at = (image * (GROUPS * GM) + channel) * ((ulong)OD * OH * OW) + place;
    float v = (float)CENTERED(sum[i], total, zero, channel) * (x_scale[0] * scale[channel]);
    FINISH
  }
}
