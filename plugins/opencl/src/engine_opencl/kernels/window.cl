// Positions of a convolution. A column is one result of one image and phase; results of a phase are T* apart, their
// first input elements S* apart. A tap is (offset in elements from a column's first, and distances along D, H and W).

// The image of a column, and its position along each axis.
inline int4 place_of(const int column) {
  return (int4)(column / (QD * QH * QW), column / (QH * QW) % QD, column / QW % QH, column % QW);
}

// The offset of a column's first element in a map of the input.
inline int first_of(const int4 place) { return (place.y * SD * IH + place.z * SH) * IW + place.w * SW; }

// Whether a tap of a column is inside the input.
inline int is_inside(const int4 place, const int4 tap) {
  return (CHECK_D ? (uint)(place.y * SD + tap.y) < ID : 1) && (CHECK_H ? (uint)(place.z * SH + tap.z) < IH : 1) &&
         (CHECK_W ? (uint)(place.w * SW + tap.w) < IW : 1);
}

// The offset of a column in a map of the result; -1 if this phase has no such result.
inline int result_of(const int4 place, const int phase) {
  const int d = place.y * TD + phase / (TH * TW), h = place.z * TH + phase / TW % TH, w = place.w * TW + phase % TW;
  return d < OD && h < OH && w < OW ? (d * OH + h) * OW + w : -1;
}
