// A convolution over up to three axes of space, or a transposed one: an item computes CHANNELS channels of one element.
// Neighbouring items are neighbours in space, so that they read neighbouring elements and the same weights.
__kernel void conv(__global const float* restrict x, __global const float* restrict w,
#if BIAS
                   __global const float* restrict bias,
#endif
#if RESIDUAL
                   __global const float* restrict residual,
#endif
                   __global float* restrict y) {
  const int pixel = get_global_id(0);
  const int first = get_global_id(1) * CHANNELS;
  const int image = get_global_id(2);
  const int ow = pixel % OW, oh = pixel / OW % OH, od = pixel / (OW * OH);
  const int group = first / GM;
  float sum[CHANNELS];
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) sum[i] = 0.0f;
  x += ((ulong)image * C + (ulong)group * GC) * ((ulong)ID * IH * IW);
  for (int c = 0; c < GC; ++c) {
    for (int kd = 0; kd < KD; ++kd) {
#if TRANSPOSED
      const int td = od + PD - kd * LD, id = td / SD;
      if (td < 0 || td % SD != 0 || id >= ID) continue;
#else
      const int id = od * SD - PD + kd * LD;
      if (id < 0 || id >= ID) continue;
#endif
      for (int kh = 0; kh < KH; ++kh) {
#if TRANSPOSED
        const int th = oh + PH - kh * LH, ih = th / SH;
        if (th < 0 || th % SH != 0 || ih >= IH) continue;
#else
        const int ih = oh * SH - PH + kh * LH;
        if (ih < 0 || ih >= IH) continue;
#endif
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
#if TRANSPOSED
          const int tw = ow + PW - kw * LW, iw = tw / SW;
          const int is_inside = tw >= 0 && tw % SW == 0 && iw < IW;
#else
          const int iw = ow * SW - PW + kw * LW;
          const int is_inside = iw >= 0 && iw < IW;
#endif
          const float value = is_inside ? x[(((ulong)c * ID + id) * IH + ih) * IW + iw] : 0.0f;
          const int tap = (kd * KH + kh) * KW + kw;
#pragma unroll
          for (int i = 0; i < CHANNELS; ++i) {
#if TRANSPOSED
            sum[i] += value * w[(((ulong)group * GC + c) * GM + (first % GM + i)) * (KD * KH * KW) + tap];
#else
            sum[i] += value * w[((ulong)(first + i) * GC + c) * (KD * KH * KW) + tap];
#endif
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < CHANNELS; ++i) {
    const int row = first + i, col = pixel;
    const ulong at = ((ulong)image * M + row) * ((ulong)OD * OH * OW) + pixel;
    float v = sum[i];
    EPILOGUE
    y[at] = v;
  }
}
