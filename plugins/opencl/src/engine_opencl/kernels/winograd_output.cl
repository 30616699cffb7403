// The output transform of Winograd's F(2x2, 3x3): an item reads the 16 products s of one tile and channel, and stores
// the 2x2 results A' s A. Neighbouring items process neighbouring tiles.
__kernel void winograd_output(__global const float* restrict s ADDED,
                              __global float* restrict y) {
  const int place = get_global_id(0), row = get_global_id(1);
  const int w = place % PLACES_W * 2, h = place / PLACES_W % PLACES_H * 2;
  const ulong map = ((ulong)(place / (PLACES_W * PLACES_H)) * M + row) * (OH * OW);
  s += (ulong)row * PLACES + place;
  float t[2][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float a = s[j * STEP], b = s[(4 + j) * STEP], c = s[(8 + j) * STEP], d = s[(12 + j) * STEP];
    t[0][j] = a + b + c;
    t[1][j] = b - c - d;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float both[2] = {t[i][0] + t[i][1] + t[i][2], t[i][1] - t[i][2] - t[i][3]};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (h + i < OH && w + j < OW) {
        const int col = (h + i) * OW + w + j;
        const ulong at = map + col;
        float v = both[j];
        EPILOGUE
        y[at] = v;
      }
    }
  }
}
