// Explicit vectors of LANES floats for CPUs, and the functions of epilogues for them.
#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)
typedef JOIN(float, LANES) lanes;
typedef JOIN(int, LANES) places;
#if LANES == 16
#define LANE_NUMBERS (places)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#elif LANES == 8
#define LANE_NUMBERS (places)(0, 1, 2, 3, 4, 5, 6, 7)
#else
#define LANE_NUMBERS (places)(0, 1, 2, 3)
#endif
#define put_lanes(v, to) JOIN(vstore, LANES)((v), 0, (to))
#define get_lanes(from) JOIN(vload, LANES)(0, (from))

lanes relu_lanes(const lanes x) { return x < 0.0f ? (lanes)(0.0f) : x; }
lanes sigmoid_lanes(const lanes x) { return 1.0f / (1.0f + exp(-x)); }
lanes clip_lanes(const lanes x, const float a, const float b) {
  return isnan(x) ? x : fmin(fmax(x, (lanes)(a)), (lanes)(b));
}
lanes swish_lanes(const lanes x, const float beta) { return x * sigmoid_lanes(beta * x); }
lanes mish_lanes(const lanes x) { return x * tanh(x > 20.0f ? x : log1p(exp(x))); }
lanes gelu_lanes(const lanes x) { return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f)); }
lanes gelu_tanh_lanes(const lanes x) {
  return 0.5f * x * (1.0f + tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
lanes hard_swish_lanes(const lanes x) { return x * clip_lanes(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f); }
#define relu relu_lanes
#define mul_add(x, y, z) ((x) * (y) + (z))
#define sigmoid sigmoid_lanes
#define swish swish_lanes
#define hard_swish hard_swish_lanes
#define mish mish_lanes
#define gelu gelu_lanes
#define gelu_tanh gelu_tanh_lanes
#define clip clip_lanes

// The first `count` elements from an index on, `step` apart.
lanes get_real(__global const real* from, const ulong at, const int step, const int count) {
  if (step == 1 && count == LANES) return load_real_lanes(from, at);
  float e[LANES];
  for (int l = 0; l < LANES; ++l) e[l] = l < count ? load_real(from, at + l * step) : 0.0f;
  return get_lanes(e);
}

void put_real(__global real* to, const ulong at, const int step, const int count, const lanes v) {
  if (step == 1 && count == LANES) {
    store_real_lanes(to, at, v);
    return;
  }
  float e[LANES];
  put_lanes(v, e);
  for (int l = 0; l < count; ++l) store_real(to, at + l * step, e[l]);
}
