// The input transform of Winograd's F(2x2, 3x3): an item transforms the 4x4 elements d of 2x2 results to B' d B, whose
// 16 elements go to 16 matrices [channels, tiles]. Neighbouring items process neighbouring tiles.
__kernel void winograd_input(__global const float* restrict x, __global float* restrict v) {
  const int place = get_global_id(0), channel = get_global_id(1);
  const int w = place % PLACES_W * 2 - PW, h = place / PLACES_W % PLACES_H * 2 - PH;
  x += ((ulong)(place / (PLACES_W * PLACES_H)) * C + channel) * (IH * IW);
  float d[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      d[i][j] = (uint)(h + i) < IH && (uint)(w + j) < IW ? x[(h + i) * IW + (w + j)] : 0.0f;
  float t[4][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    t[0][j] = d[0][j] - d[2][j];
    t[1][j] = d[1][j] + d[2][j];
    t[2][j] = d[2][j] - d[1][j];
    t[3][j] = d[1][j] - d[3][j];
  }
  v += (ulong)channel * PLACES + place;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[(4 * i) * STEP] = t[i][0] - t[i][2];
    v[(4 * i + 1) * STEP] = t[i][1] + t[i][2];
    v[(4 * i + 2) * STEP] = t[i][2] - t[i][1];
    v[(4 * i + 3) * STEP] = t[i][1] - t[i][3];
  }
}
