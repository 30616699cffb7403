// The largest element of each window, of any type, and (INDICES) its index among all elements: the first of equal ones;
// NaN is the largest. Padding is ignored. BY_COLUMNS: indices are column-major in a plane.
__kernel void max_pool(__global const stored_T* restrict x, __global stored_T* restrict y
#if INDICES
                       , __global long* restrict indices
#endif
) {
  const int pixel = get_global_id(0);
  const ulong map = get_global_id(1), to = map * ((ulong)OD * OH * OW) + pixel;
  const int ow = pixel % OW, oh = pixel / OW % OH, od = pixel / (OW * OH);
  x += map * ((ulong)ID * IH * IW);
  T value = LOWEST;
  long found = -1;
  for (int kd = 0; kd < KD; ++kd) {
    const int id = od * SD - PD + kd * LD;
    if (id < 0 || id >= ID) continue;
    for (int kh = 0; kh < KH; ++kh) {
      const int ih = oh * SH - PH + kh * LH;
      if (ih < 0 || ih >= IH) continue;
      for (int kw = 0; kw < KW; ++kw) {
        const int iw = ow * SW - PW + kw * LW;
        if (iw < 0 || iw >= IW) continue;
        const T e = load_T(x, ((ulong)id * IH + ih) * IW + iw);
        if (found < 0 || e > value || (e != e && value == value)) {
          value = e;
          found = BY_COLUMNS ? (long)iw * IH + ih : ((long)id * IH + ih) * IW + iw;
        }
      }
    }
  }
  store_T(y, to, value);
#if INDICES
  indices[to] = found < 0 ? -1 : (long)(map * ((ulong)ID * IH * IW)) + found;
#endif
}
