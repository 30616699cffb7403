// A convolution with one input channel per group: an item computes STRIP results, one below the other, so that an
// element is read once for all of them. Neighbouring items are neighbours in a row.
#define READ_ROWS ((STRIP - 1) * SH + (KH - 1) * LH + 1)

__kernel void depthwise(__global const real* restrict x, __global const real* restrict w ADDED,
                        __global real* restrict y) {
  const ulong item = get_global_id(0);
  if (item >= ITEMS) return;
  const int ow = item % OW, strip = item / OW % STRIPS, od = item / (OW * STRIPS) % OD;
  const ulong map = item / ((ulong)OW * STRIPS * OD);
  const int row = map % M, first_w = ow * SW - PW, first_h = strip * STRIP * SH - PH;
  x += (map / M * C + row / GM) * ((ulong)ID * IH * IW);
  w += (ulong)row * (KD * KH * KW);
  float sum[STRIP];
#pragma unroll
  for (int j = 0; j < STRIP; ++j) sum[j] = 0.0f;
  for (int kd = 0; kd < KD; ++kd) {
    const int id = od * SD - PD + kd * LD;
    if ((uint)id >= ID) continue;
#if UNROLLED
    float weights[KH * KW];
#pragma unroll
    for (int k = 0; k < KH * KW; ++k) weights[k] = load_real(w, kd * (KH * KW) + k);
#pragma unroll
    for (int t = 0; t < READ_ROWS; ++t) {
      const int ih = first_h + t;
      if ((uint)ih >= IH) continue;
      const int from = (id * IH + ih) * IW + first_w;
#pragma unroll
      for (int kw = 0; kw < KW; ++kw) {
        const float value = (uint)(first_w + kw * LW) < IW ? load_real(x, from + kw * LW) : 0.0f;
#pragma unroll
        for (int j = 0; j < STRIP; ++j) {
          const int reach = t - j * SH;
          if (reach >= 0 && reach % LH == 0 && reach / LH < KH) sum[j] += value * weights[reach / LH * KW + kw];
        }
      }
    }
#else
    for (int kh = 0; kh < KH; ++kh) {
      for (int kw = 0; kw < KW; ++kw) {
        const int iw = first_w + kw * LW;
        if ((uint)iw >= IW) continue;
        const float weight = load_real(w, (kd * KH + kh) * KW + kw);
#pragma unroll
        for (int j = 0; j < STRIP; ++j) {
          const int ih = first_h + j * SH + kh * LH;
          if ((uint)ih < IH) sum[j] += weight * load_real(x, (id * IH + ih) * IW + iw);
        }
      }
    }
#endif
  }
#pragma unroll
  for (int j = 0; j < STRIP; ++j) {
    const int oh = strip * STRIP + j;
    if (oh < OH) {
      const int col = (od * OH + oh) * OW + ow;
      const ulong at = map * ((ulong)OD * OH * OW) + col;
      float v = sum[j];
      EPILOGUE
      store_real(y, at, v);
    }
  }
}
