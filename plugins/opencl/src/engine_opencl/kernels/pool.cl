// The largest element of each window or, with IS_SUM, RESULT of the sum of TERM of its elements; NaN is propagated.
// With COUNT_PADS, `count` includes padding up to E*.
__kernel void pool(__global const real* restrict x, __global real* restrict y) {
  const int pixel = get_global_id(0);
  const ulong map = get_global_id(1);
  const int ow = pixel % OW, oh = pixel / OW % OH, od = pixel / (OW * OH);
  x += map * ((ulong)ID * IH * IW);
  float value = IS_SUM ? 0.0f : -INFINITY;
  int count = 0;
  for (int kd = 0; kd < KD; ++kd) {
    const int id = od * SD - PD + kd * LD;
    for (int kh = 0; kh < KH; ++kh) {
      const int ih = oh * SH - PH + kh * LH;
      for (int kw = 0; kw < KW; ++kw) {
        const int iw = ow * SW - PW + kw * LW;
        if (id < 0 || id >= ID || ih < 0 || ih >= IH || iw < 0 || iw >= IW) {
          count += COUNT_PADS && id < ED && ih < EH && iw < EW;
          continue;
        }
        const float e = load_real(x, ((ulong)id * IH + ih) * IW + iw);
        ++count;
        if (IS_SUM) value += TERM(e);
        else value = isnan(e) || e > value ? e : value;
      }
    }
  }
  store_real(y, map * ((ulong)OD * OH * OW) + pixel, RESULT(value, count));
}
