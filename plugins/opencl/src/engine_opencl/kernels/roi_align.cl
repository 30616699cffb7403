// Averages or maxima of samples in the cells of regions of maps. An item computes one cell of CHANNELS channels, and finds
// its samples once for them; neighbouring items are neighbouring cells. Samples beyond the map are zeros: only their
// number matters, so that a region of any size takes no more time than a few maps.

// Samples begin + (i + 0.5) * size / count along one side of a cell; those from `first` to `last` may be on the map.
typedef struct {
  float begin, size, count;
  long first, last;
} Side;

typedef struct {
  int low, high;  // low -1: beyond the map
  float weight_low, weight_high;
} Axis;

// A few more on each side than computed, because of rounding.
inline long limited(float at, float more, long last) {
  const float wide = at + more * (2.0f + fmin(fabs(at) * 1e-6f, 1000.0f));
  return wide > 0.0f ? (wide < last ? (long)wide : last) : 0;
}

inline Side side_of(float start, float bin, int cell, int length) {
  Side side;
  side.begin = start + product(cell, bin);
  side.size = bin;
  side.count = SAMPLES ? (float)SAMPLES : ceil(bin);
  side.first = 0;
  side.last = side.count < 1.0f ? 0 : (long)fmin(side.count, 1e15f);
  const float step = side.size / side.count;
  if (!(step > 0.0f)) return side;  // all at one place, or in reverse, which only a given number of samples can be
  side.first = limited((-1.0f - side.begin) / step, -1.0f, side.last);
  side.last = max(limited((length - side.begin) / step, 1.0f, side.last), side.first);
  return side;
}

inline Axis axis_at(Side side, long i, int length) {
  const float at = side.begin + quotient(product((float)i + 0.5f, side.size), side.count);
  Axis axis;
  axis.low = axis.high = -1;
  axis.weight_low = axis.weight_high = 0.0f;
  if (!(at >= -1.0f && at <= length)) return axis;
  const float place = fmax(at, 0.0f);
  axis.low = min((int)place, length - 1);
  axis.high = min(axis.low + 1, length - 1);
  axis.weight_high = axis.low == length - 1 ? 0.0f : place - axis.low;
  axis.weight_low = 1.0f - axis.weight_high;
  return axis;
}

inline float larger(float a, float b) { return a > b || isnan(a) ? a : b; }  // a NaN counts as the largest

__kernel void roi_align(__global const real* restrict x, __global const real* restrict regions,
                        __global const long* restrict images, __global real* restrict y, const float scale,
                        __global long* restrict fault, const int slot) {
  const int cell = get_global_id(0), first = get_global_id(1) * CHANNELS;
  const ulong region = get_global_id(2);
  const long image = images[region];
  if (image < 0 || image >= IMAGES) {
    fault[slot] = image < 0 ? image : image + 1;
    return;
  }
  float ends[4];
  for (int k = 0; k < 4; ++k) ends[k] = product(load_real(regions, region * 4 + k), scale) - (HALF_PIXEL ? 0.5f : 0.0f);
  float width = ends[2] - ends[0], height = ends[3] - ends[1];
  const bool is_finite = isfinite(width) && isfinite(height);  // no end is infinite or NaN, then
  if (!HALF_PIXEL) {
    width = fmax(width, 1.0f);
    height = fmax(height, 1.0f);
  }
  const Side rows = side_of(ends[1], quotient(height, CELLS_H), cell / CELLS_W, H);
  const Side columns = side_of(ends[0], quotient(width, CELLS_W), cell % CELLS_W, W);
  bool is_beyond = rows.first > 0 || columns.first > 0 || rows.last < rows.count || columns.last < columns.count;
  float found[CHANNELS];
  ulong from[CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    found[c] = MAXIMUM ? -INFINITY : 0.0f;
    from[c] = ((ulong)image * C + min(first + c, C - 1)) * ((ulong)H * W);
  }
  for (long i = rows.first; is_finite && i < rows.last; ++i) {
    const Axis v = axis_at(rows, i, H);
    is_beyond |= v.low < 0;
    if (v.low < 0) continue;
    for (long j = columns.first; j < columns.last; ++j) {
      const Axis u = axis_at(columns, j, W);
      is_beyond |= u.low < 0;
      if (u.low < 0) continue;
      const ulong low = (ulong)v.low * W, high = (ulong)v.high * W;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        const float a = v.weight_low * u.weight_low * load_real(x, from[c] + low + u.low);
        const float b = v.weight_low * u.weight_high * load_real(x, from[c] + low + u.high);
        const float d = v.weight_high * u.weight_low * load_real(x, from[c] + high + u.low);
        const float e = v.weight_high * u.weight_high * load_real(x, from[c] + high + u.high);
#if MAXIMUM
        found[c] = larger(larger(larger(a, b), larger(d, e)), found[c]);
#else
        found[c] += a + b + d + e;
#endif
      }
    }
  }
  const float count = rows.count * columns.count;
  const bool is_empty = !(rows.count >= 1.0f && columns.count >= 1.0f);
  y += (region * C + first) * CELLS_H * CELLS_W + cell;
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
#if MAXIMUM
    float v = is_empty ? 0.0f : is_beyond ? larger(found[c], 0.0f) : found[c];
#else
    float v = is_empty ? 0.0f : found[c] / count;
#endif
    v = is_finite ? v : NAN;
    if (first + c < C) store_real(y, (ulong)c * CELLS_H * CELLS_W, v);
  }
}
