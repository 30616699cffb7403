// Judges the 2x2 results of each tile, [group][tile]: bit k is set if the largest value of the tile exceeds LARGEST, or
// RANGE times the largest one that result k sees, since rounding errors of Winograd's F(2x2, 3x3) are relative to the
// former; bit k + 4 is set instead if the result sees zeros only, beside other values. Neighbouring items process
// neighbouring tiles.
__kernel void winograd_marks(__global const float* restrict ranges, __global uchar* restrict marks) {
  const int place = get_global_id(0), group = get_global_id(1), image = place / (PLACES_W * PLACES_H);
  const int w = place % PLACES_W * 2, h = place / PLACES_W % PLACES_H * 2;
  ranges += (ulong)group * PARTS * POSITIONS + image * (IH * IW);
  float seen[4] = {0.0f, 0.0f, 0.0f, 0.0f}, most = 0.0f;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int ih = h + i - PH, iw = w + j - PW;
      if (ih < 0 || ih >= IH || iw < 0 || iw >= IW) continue;
      float value = 0.0f;
      for (int part = 0; part < PARTS; ++part) value = fmax(value, ranges[(ulong)part * POSITIONS + ih * IW + iw]);
      most = fmax(most, value);
      for (int k = 0; k < 4; ++k) {
        if (i - k / 2 >= 0 && i - k / 2 < 3 && j - k % 2 >= 0 && j - k % 2 < 3) seen[k] = fmax(seen[k], value);
      }
    }
  }
  int mark = 0;
  for (int k = 0; k < 4; ++k) {
    const int is_result = h + k / 2 < OH && w + k % 2 < OW;
    if (is_result && (most > LARGEST || most > RANGE * seen[k])) mark |= seen[k] > 0.0f ? 1 << k : 16 << k;
  }
  marks[(ulong)group * PLACES + place] = (uchar)mark;
}
