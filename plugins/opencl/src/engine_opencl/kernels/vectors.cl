// Vector loads and stores for arrays with compile-time indices, which stay in registers.
#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#define fetch_reals(width) JOIN(fetch_reals_, width)
#define keep_factors(width) JOIN(keep_factors_, width)

inline void fetch_reals_1(__global const real* from, float* v) { v[0] = load_real(from, 0); }
inline void fetch_reals_2(__global const real* from, float* v) {
  const float2 x = load_real2(from, 0);
  v[0] = x.s0, v[1] = x.s1;
}
inline void fetch_reals_4(__global const real* from, float* v) {
  const float4 x = load_real4(from, 0);
  v[0] = x.s0, v[1] = x.s1, v[2] = x.s2, v[3] = x.s3;
}
inline void keep_factors_1(__local factor_t* to, const float* v) { to[0] = to_factor(v[0]); }
inline void keep_factors_2(__local factor_t* to, const float* v) {
  *(__local factor2_t*)to = to_factor2((float2)(v[0], v[1]));
}
inline void keep_factors_4(__local factor_t* to, const float* v) {
  *(__local factor4_t*)to = to_factor4((float4)(v[0], v[1], v[2], v[3]));
}
