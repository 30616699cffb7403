// The functions that the expressions of pointwise.def call, on vectors of f32; others are in simd/vec.hpp. Included by
// kernel files only.
#pragma once

#include "root.hpp"
#include "vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

ENGINE_INLINE Vec real(double value) {
  return broadcast(static_cast<float>(value));
}
ENGINE_INLINE Vec mul_add(Vec a, Vec b, Vec c) {
  return fma(a, b, c);
}
ENGINE_INLINE Vec fabs(Vec x) {
  return abs(x);
}
ENGINE_INLINE Vec expm1(Vec x) {
  return exp_minus_one(x);
}

// Rounds to even by adding a number whose last place is 1; larger values are integers already. Keeps the sign of zero.
ENGINE_INLINE Vec rint(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_roundscale_ps((__mmask16)-1, (__m512)x, 8);
#elif defined(__aarch64__)
  return (Vec)vrndnq_f32((float32x4_t)x);
#else
  constexpr float kUnit = 8388608.0f;
  const Vec magnitude = abs(x);
  return magnitude < kUnit ? copy_sign((magnitude + kUnit) - kUnit, x) : x;
#endif
}

ENGINE_INLINE Vec floor(Vec x) {
  const Vec near = rint(x);
  return near > x ? near - 1.0f : near;
}

ENGINE_INLINE Vec ceil(Vec x) {
  const Vec near = rint(x);
  return copy_sign(near < x ? near + 1.0f : near, x);
}

ENGINE_INLINE Vec sqrt(Vec x) {
  return square_root(x);
}

// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); a polynomial for log(1 + f). Subnormals are scaled first.
ENGINE_INLINE Vec log(Vec x) {
  constexpr float kSmallest = 1.17549435e-38f;
  const Vec scaled = x < kSmallest ? x * 8388608.0f : x;
  const VecInt offset = ((VecInt)abs(scaled) - 0x3f3504f3) >> 23;
  const Vec exponent = __builtin_convertvector(offset, Vec) - (x < kSmallest ? broadcast(23.0f) : zero());
  const Vec f = (Vec)((VecInt)abs(scaled) - offset * (1 << 23)) - 1.0f;
  const Vec square = f * f;
  Vec p = broadcast(-0.0763449296f);
  p = fma(p, f, broadcast(0.12761575f));
  p = fma(p, f, broadcast(-0.131601825f));
  p = fma(p, f, broadcast(0.142017588f));
  p = fma(p, f, broadcast(-0.166233569f));
  p = fma(p, f, broadcast(0.200012267f));
  p = fma(p, f, broadcast(-0.250008196f));
  p = fma(p, f, broadcast(0.333333313f));
  // ln 2 as a sum of two constants; the product of the first and an exponent is exact.
  Vec low = fma(p * square, f, exponent * -2.12194440e-4f);
  low = fma(square, broadcast(-0.5f), low);
  const Vec finite = fma(exponent, broadcast(0.693359375f), low + f);
  const Vec infinity = broadcast(__builtin_inff());
  const Vec limit = x == 0.0f ? -infinity : (x < 0.0f ? broadcast(__builtin_nanf("")) : x);
  return ((x > 0.0f) & (x < infinity)) ? finite : limit;
}

// log(1 + u) for u in [0, 1], with small relative error down to zero.
ENGINE_INLINE Vec log1p(Vec u) {
  const Vec w = 1.0f + u;
  return w == 1.0f ? u : log(w) * (u / (w - 1.0f));
}

ENGINE_INLINE Vec relu(Vec x) {
  return max(zero(), x);
}

// tanh(softplus(x)) is n / (n + 2) with n = e^x (e^x + 2); 1 in f32 from x = 12, where n is still finite.
ENGINE_INLINE Vec mish(Vec x) {
  const Vec e = exp(min(broadcast(12.0f), x));
  const Vec n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

ENGINE_INLINE Vec clip(Vec x, Vec low, Vec high) {
  return min(high, max(low, x));
}

ENGINE_INLINE Vec hard_swish(Vec x) {
  return x * clip(fma(x, broadcast(1.0f / 6.0f), broadcast(0.5f)), zero(), broadcast(1.0f));
}

// a sigmoid(b a) = a / (1 + e) with e = e^(-b a). An e that 1 absorbs is not computed where it would be a denormal,
// which takes long. Without a scaling instruction, everything is halved, so that e / 2 needs one factor: it is finite
// where e overflows, and infinite soon after.
ENGINE_INLINE Vec swish(Vec a, Vec b) {
  constexpr float kLeast = -87.0f;
#if defined(__AVX512F__)
  return a / (1.0f + exp(-(a * b), kLeast));
#else
  const Reduced parts = reduce_exponent(max(broadcast(kLeast), min(broadcast(89.2f), -(a * b))));
  const Vec p = fma(fma(exp_tail(parts.r), parts.r, broadcast(1.0f)), parts.r, broadcast(1.0f));
  const Vec half = p * (Vec)((__builtin_convertvector(parts.n, VecInt) + 126) << 23);
  return 0.5f * a / (0.5f + half);
#endif
}

}  // namespace engine::ENGINE_ISA_NS::simd
