// The maps of a tensor with zeros around, taken apart by strides: [maps][FD][FH][FW][PD][PH][PW], where a phase F has
// every S-th element. A tap of a convolution then reads neighbouring elements for neighbouring results.
__kernel void pad(__global const real* restrict x, __global float* restrict y) {
  const int place = get_global_id(0), map = get_global_id(1);
  const int pw = place % PW, ph = place / PW % PH, pd = place / (PW * PH) % PD;
  const int phase = place / (PW * PH * PD), fw = phase % FW, fh = phase / FW % FH, fd = phase / (FW * FH);
  const int w = pw * SW + fw - BW, h = ph * SH + fh - BH, d = pd * SD + fd - BD;
  const int is_inside = w >= 0 && w < IW && h >= 0 && h < IH && d >= 0 && d < ID;
  y[(ulong)map * (FD * FH * FW * PD * PH * PW) + place] =
      is_inside ? load_real(x, (ulong)map * (ID * IH * IW) + (d * IH + h) * IW + w) : 0.0f;
}
