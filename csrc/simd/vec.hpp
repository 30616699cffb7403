// Vectors of f32 at the widest width of the instruction set, and elementary functions on them.
//
// Written on the vector extensions of GCC and Clang, so one source serves x86-64-v2, AVX2, AVX-512 and NEON. Intrinsics
// stand only where the extensions have no expression that compiles to the one instruction (fma, min, max).
//
// Accuracy, as csrc/tests/kernels_simd.cpp measures it: sigmoid 4 units in the last place above -87, tanh 3; exp and
// erf through ELU and GELU, 2.5e-7 and 3.6e-7 relative to the terms that cancel there.
// NaN in gives NaN out; infinities give the limits.
#pragma once

#include "bf16.hpp"
#include "isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine::ENGINE_ISA_NS::simd {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// Lanes of f32 in a vector, and vectors in a block of sixteen channels.
constexpr int kLanes = kVectorBytes / 4;
constexpr int kBlock = 16;
constexpr int kVectorsPerBlock = kBlock / kLanes;

typedef float Vec __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes)));
typedef float VecUnaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef int32_t VecInt __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes)));
typedef uint32_t VecBits __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes)));
typedef uint16_t HalfUnaligned __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef int32_t IntUnaligned __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));
typedef int32_t Unaligned32 __attribute__((aligned(2), may_alias));

ENGINE_INLINE Vec load(const float* from) {
  return *reinterpret_cast<const VecUnaligned*>(from);
}
ENGINE_INLINE void store(float* to, Vec value) {
  *reinterpret_cast<VecUnaligned*>(to) = value;
}
ENGINE_INLINE Vec zero() {
  return Vec{};
}
ENGINE_INLINE Vec broadcast(float value) {
  return value - Vec{};
}

// kLanes adjacent values of bf16 as f32, and back, rounded to the nearest. Where the machine has an instruction for
// rounding it takes denormals for zero; everywhere a NaN stays one, and becomes quiet.
ENGINE_INLINE Vec load(const Bf16* from) {
  const HalfUnaligned half = *reinterpret_cast<const HalfUnaligned*>(from);
#if defined(__AVX512BW__)
  // One permutation in place of widening and shifting.
  alignas(64) static constexpr uint16_t kIndex[32] = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                                                      0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  return (Vec)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, _mm512_load_si512(kIndex),
                                             _mm512_castsi256_si512((__m256i)half));
#else
  return (Vec)(__builtin_convertvector(half, VecBits) << 16);
#endif
}
ENGINE_INLINE void store(Bf16* to, Vec value) {
#if defined(__AVX512BF16__)
  *reinterpret_cast<HalfUnaligned*>(to) = (HalfUnaligned)_mm512_cvtneps_pbh((__m512)value);
#else
  const VecBits bits = (VecBits)value;
  const VecBits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const VecBits result = value != value ? (bits >> 16) | 0x40 : rounded;
  *reinterpret_cast<HalfUnaligned*>(to) = __builtin_convertvector(result, HalfUnaligned);
#endif
}

// Pairs of bf16, one in each 32 bits: kLanes adjacent ones; one in all lanes; and one whose second value is zero.
ENGINE_INLINE VecInt load_pairs(const Bf16* from) {
  return *reinterpret_cast<const IntUnaligned*>(from);
}
ENGINE_INLINE VecInt broadcast_pair(const Bf16* from) {
  return *reinterpret_cast<const Unaligned32*>(from) - VecInt{};
}
ENGINE_INLINE VecInt broadcast_first(const Bf16* from) {
  return static_cast<int32_t>(from->bits) - VecInt{};
}

// a * b + c, rounded once where the machine has the instruction.
ENGINE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// c + a.first * b.first + a.second * b.second, lane by lane in f32; the order and roundings of the two sums are the
// machine's own, and it may take denormals for zero.
ENGINE_INLINE Vec dot_pairs(VecInt a, VecInt b, Vec c) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
  const VecInt upper = (int32_t)0xffff0000 - VecInt{};
  return fma((Vec)(a << 16), (Vec)(b << 16), fma((Vec)(a & upper), (Vec)(b & upper), c));
#endif
}

// The larger (smaller) lane; `b` where either is NaN, so a NaN of the data passes a bound given as `a`.
ENGINE_INLINE Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_max_ps((__mmask16)-1, (__m512)a, (__m512)b);  // gcc 12 warns of the plain one
#elif defined(__AVX__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
  return (Vec)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}

ENGINE_INLINE Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_min_ps((__mmask16)-1, (__m512)a, (__m512)b);  // gcc 12 warns of the plain one
#elif defined(__AVX__)
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
  return (Vec)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

ENGINE_INLINE Vec abs(Vec x) {
  return (Vec)((VecInt)x & 0x7fffffff);
}
ENGINE_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return (Vec)(((VecInt)magnitude & 0x7fffffff) | ((VecInt)sign & INT32_MIN));
}

// The lanes of x, each pair `half` apart exchanged. Written out: from a loop the compiler makes no constant.
#if defined(__AVX512F__)
#define ENGINE_SWAP_LANES(x, half)                                                                            \
  __builtin_shuffle(x, VecInt{0 ^ half, 1 ^ half, 2 ^ half, 3 ^ half, 4 ^ half, 5 ^ half, 6 ^ half, 7 ^ half, \
                              8 ^ half, 9 ^ half, 10 ^ half, 11 ^ half, 12 ^ half, 13 ^ half, 14 ^ half, 15 ^ half})
#elif defined(__AVX__)
#define ENGINE_SWAP_LANES(x, half) \
  __builtin_shuffle(x, VecInt{0 ^ half, 1 ^ half, 2 ^ half, 3 ^ half, 4 ^ half, 5 ^ half, 6 ^ half, 7 ^ half})
#else
#define ENGINE_SWAP_LANES(x, half) __builtin_shuffle(x, VecInt{0 ^ half, 1 ^ half, 2 ^ half, 3 ^ half})
#endif

// The sum over the lanes, in every lane.
ENGINE_INLINE Vec add_lanes(Vec x) {
#if defined(__AVX512F__)
  x += ENGINE_SWAP_LANES(x, 8);
#endif
#if defined(__AVX__)
  x += ENGINE_SWAP_LANES(x, 4);
#endif
  x += ENGINE_SWAP_LANES(x, 2);
  x += ENGINE_SWAP_LANES(x, 1);
  return x;
}
#undef ENGINE_SWAP_LANES

// Sums and extremes over the lanes. A NaN in any lane makes the maximum NaN.
ENGINE_INLINE float reduce_add(Vec x) {
  return add_lanes(x)[0];
}

ENGINE_INLINE float reduce_max(Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i)
    if (!(lanes[i] <= best) && best == best) best = lanes[i];
  return best;
}

// e^x. x = n ln2 + r with |r| <= ln2 / 2; n comes out of the rounding constant's low bits, and 2^n is applied in two
// factors so that results below the normal range round instead of vanishing.
ENGINE_INLINE Vec exp(Vec x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  x = min(broadcast(89.0f), max(broadcast(-105.0f), x));
  const Vec shifted = fma(x, broadcast(1.44269504f), broadcast(kRound));
  const Vec n = shifted - kRound;
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.39421644e-3f);
  p = fma(p, r, broadcast(8.36377591e-3f));
  p = fma(p, r, broadcast(4.16663624e-2f));
  p = fma(p, r, broadcast(1.66665733e-1f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r * r, r) + 1.0f;
  const VecInt exponent = (VecInt)shifted - 0x4b400000;
  const VecInt half = exponent >> 1;
  return p * (Vec)((half + 127) << 23) * (Vec)((exponent - half + 127) << 23);
}

ENGINE_INLINE Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}

ENGINE_INLINE Vec tanh(Vec x) {
  const Vec a = abs(x), z = x * x;
  Vec p = broadcast(-6.11660955e-3f);
  p = fma(p, z, broadcast(2.10124049e-2f));
  p = fma(p, z, broadcast(-5.38545512e-2f));
  p = fma(p, z, broadcast(1.33327976e-1f));
  p = fma(p, z, broadcast(-3.33333284e-1f));
  const Vec small = fma(p * z, x, x);
  const Vec large = copy_sign(1.0f - 2.0f / (exp(a + a) + 1.0f), x);
  // The comparison is false for NaN, and `large` of a NaN is NaN.
  return a < 0.62f ? small : large;
}

// Odd polynomial below 1; above, 1 - e^q(|x|) with q fitted to log(erfc).
ENGINE_INLINE Vec erf(Vec x) {
  const Vec z = x * x;
  Vec p = broadcast(7.88912294e-5f);
  p = fma(p, z, broadcast(-8.02084222e-4f));
  p = fma(p, z, broadcast(5.18953567e-3f));
  p = fma(p, z, broadcast(-2.68544443e-2f));
  p = fma(p, z, broadcast(1.12836003e-1f));
  p = fma(p, z, broadcast(-3.7612626e-1f));
  p = fma(p, z, broadcast(1.12837911f));
  const Vec a = min(broadcast(4.0f), abs(x));
  Vec q = broadcast(-2.16867629e-5f);
  q = fma(q, a, broadcast(4.41335287e-4f));
  q = fma(q, a, broadcast(-4.20455635e-3f));
  q = fma(q, a, broadcast(2.52082404e-2f));
  q = fma(q, a, broadcast(-1.08418554e-1f));
  q = fma(q, a, broadcast(-6.33219898e-1f));
  q = fma(q, a, broadcast(-1.12957835f));
  q = fma(q, a, broadcast(1.8803704e-4f));
  return a < 1.0f ? p * x : copy_sign(1.0f - exp(q), x);
}

}  // namespace engine::ENGINE_ISA_NS::simd
