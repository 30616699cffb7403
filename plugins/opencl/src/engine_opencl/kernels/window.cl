// Places of a convolution. A column is one result of one image and phase; results of a phase lie T* apart, its columns'
// first elements of the input S* apart. A tap is (elements from a column's first, and distances along D, H and W).

// Image, and place along each axis, of a column.
inline int4 place_of(const int column) {
  return (int4)(column / (QD * QH * QW), column / (QH * QW) % QD, column / QW % QH, column % QW);
}

// Where in a map of the input a column begins.
inline int first_of(const int4 place) { return (place.y * SD * IH + place.z * SH) * IW + place.w * SW; }

// Whether a tap of a column lies in the input.
inline int is_inside(const int4 place, const int4 tap) {
  return (CHECK_D ? (uint)(place.y * SD + tap.y) < ID : 1) && (CHECK_H ? (uint)(place.z * SH + tap.z) < IH : 1) &&
         (CHECK_W ? (uint)(place.w * SW + tap.w) < IW : 1);
}

// Where in a map of the result a column is stored; -1 where this phase has no such result.
inline int result_of(const int4 place, const int phase) {
  const int d = place.y * TD + phase / (TH * TW), h = place.z * TH + phase / TW % TH, w = place.w * TW + phase % TW;
  return d < OD && h < OH && w < OW ? (d * OH + h) * OW + w : -1;
}
