// Elements of an image at computed coordinates, (x, y) or (x, y, z) in -1 .. 1 for each position of the result. An item
// computes its coordinates once for all channels; neighbouring items are neighbours in the result. Padding is applied
// to the coordinates for nearest and linear, and to each element for cubic interpolation. At a coordinate that is not
// finite, the value is NaN.
inline float reflected(float at, int length) {
  const float low = ALIGN ? 0.0f : -0.5f, span = ALIGN ? length - 1.0f : (float)length;
  if (span == 0.0f) return low;
  if (at >= low && at <= low + span) return at;
  const float distance = at < low ? low - at : at - low - span;
  const float times = trunc(distance / span), rest = distance - times * span;
  const bool is_even = fmod(times, 2.0f) == 0.0f;
  return (at < low) == is_even ? low + rest : low + span - rest;
}

inline float moved_inside(float at, int length) {
#if BORDER
  return fmin(fmax(at, 0.0f), length - 1.0f);
#elif REFLECTION
  return reflected(at, length);
#else
  return at;
#endif
}

// The indices of TAPS elements along an axis, -1 for a zero, and their weights.
inline void find_taps(float g, int length, int* index, float* weight) {
  float at = ALIGN ? (g + 1.0f) * 0.5f * (length - 1) : ((g + 1.0f) * length - 1.0f) * 0.5f;
  const float missing = at - at;  // NaN, or 0 for a finite coordinate
#if TAPS == 1
  at = moved_inside(rint(at), length);
  weight[0] = 1.0f;
  const float first = REFLECTION ? trunc(at) : at;
#elif TAPS == 2
  at = moved_inside(at, length);
  const float first = floor(at), t = at - first;
  weight[0] = 1.0f - t, weight[1] = t;
#else
  const float first = floor(at) - 1.0f, t = at - first - 1.0f, u = 1.0f - t, s = t + 1.0f, r = u + 1.0f;
  weight[0] = ((-0.75f * s + 3.75f) * s - 6.0f) * s + 3.0f;
  weight[1] = (1.25f * t - 2.25f) * t * t + 1.0f;
  weight[2] = (1.25f * u - 2.25f) * u * u + 1.0f;
  weight[3] = ((-0.75f * r + 3.75f) * r - 6.0f) * r + 3.0f;
#endif
  for (int k = 0; k < TAPS; ++k) {
    float place = first + k;
#if REFLECTION
    place = trunc(reflected(place, length));
#endif
    index[k] = (int)fmin(fmax(place, 0.0f), length - 1.0f);  // 0 for NaN
#if !BORDER && !REFLECTION
    if (place < 0.0f || place >= length) index[k] = -1;
#endif
    if (isnan(missing)) weight[k] = missing;
  }
}

__kernel void grid_sample(__global const real* restrict x, __global const real* restrict grid,
                          __global real* restrict y) {
  const ulong place = get_global_id(0), image = get_global_id(1);
  grid += (image * PLACES + place) * RANK;
  int iw[TAPS], ih[TAPS];
  float ww[TAPS], wh[TAPS];
  find_taps(load_real(grid, 0), W, iw, ww);
  find_taps(load_real(grid, 1), H, ih, wh);
#if RANK == 3
  int id[TAPS];
  float wd[TAPS];
  find_taps(load_real(grid, 2), D, id, wd);
#else
  const int id[1] = {0};
  const float wd[1] = {1.0f};
#endif
  x += image * CHANNELS * ((ulong)D * H * W);
  y += image * CHANNELS * PLACES + place;
  for (int c = 0; c < CHANNELS; ++c) {
    float sum = 0.0f;
    for (int i = 0; i < (RANK == 3 ? TAPS : 1); ++i) {
      for (int j = 0; j < TAPS; ++j) {
        for (int k = 0; k < TAPS; ++k) {
          const bool is_inside = id[i] >= 0 && ih[j] >= 0 && iw[k] >= 0;
          const float value = is_inside ? load_real(x, ((ulong)id[i] * H + ih[j]) * W + iw[k]) : 0.0f;
          sum += value * (wd[i] * wh[j] * ww[k]);
        }
      }
    }
    store_real(y, c * PLACES, sum);
    x += (ulong)D * H * W;
  }
}
