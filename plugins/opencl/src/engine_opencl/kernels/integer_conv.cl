// A convolution of 8-bit integers minus their zero points, so that padding counts as 0. An item computes CHANNELS
// channels of a group at one position, and reads each input element once for them; neighbouring items are spatial
// neighbours.
__kernel void integer_conv(__global const A* restrict x, __global const B* restrict w,
#if A_POINT
                           __global const A* restrict x_zero,
#endif
#if B_POINT
                           __global const B* restrict w_zero,
#endif
#if QUANTIZED
                           __global const stored_SCALE* restrict x_scale, __global const stored_SCALE* restrict w_scale,
                           __global const stored_SCALE* restrict y_scale, __global const Y* restrict y_zero,
#endif
#if BIAS
                           __global const int* restrict bias,
#endif
                           __global Y* restrict y) {
  const int place = get_global_id(0);
  const int group = get_global_id(1) / BLOCKS, first = get_global_id(1) % BLOCKS * CHANNELS;
  const ulong image = get_global_id(2);
  const int ow = place % OW, oh = place / OW % OH, od = place / (OW * OH);
  x += (image * GROUPS + group) * ((ulong)C * ID * IH * IW);
  ulong from[CHANNELS];
  int channel[CHANNELS], point[CHANNELS], sum[CHANNELS];
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) {
    channel[i] = group * GM + min(first + i, GM - 1);
    from[i] = (ulong)channel[i] * C * (KD * KH * KW);
#if B_POINT
    point[i] = w_zero[channel[i] * B_POINT_STEP];
#else
    point[i] = 0;
#endif
    sum[i] = 0;
  }
#if A_POINT
  const int own = x_zero[0];
#else
  const int own = 0;
#endif
  for (int c = 0; c < C; ++c) {
    for (int kd = 0; kd < KD; ++kd) {
      const int id = od * SD - PD + kd * LD;
      if (id < 0 || id >= ID) continue;
      for (int kh = 0; kh < KH; ++kh) {
        const int ih = oh * SH - PH + kh * LH;
        if (ih < 0 || ih >= IH) continue;
        for (int kw = 0; kw < KW; ++kw) {
          const int iw = ow * SW - PW + kw * LW;
          if (iw < 0 || iw >= IW) continue;
          const int element = x[(((ulong)c * ID + id) * IH + ih) * IW + iw] - own;
          const int at = ((c * KD + kd) * KH + kh) * KW + kw;
#pragma unroll
          for (int i = 0; i < CHANNELS; ++i) sum[i] += element * (w[from[i] + at] - point[i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) {
    if (first + i >= GM) break;
#if BIAS
    sum[i] += bias[channel[i]];
#endif
    STORE_SUM((image * (GROUPS * GM) + channel[i]) * ((ulong)OD * OH * OW) + place, sum[i],
              load_SCALE(x_scale, 0) * load_SCALE(w_scale, channel[i] * B_SCALE_STEP) / load_SCALE(y_scale, 0), y_zero[0]);
  }
}
