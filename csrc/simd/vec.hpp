// Vectors of f32 at the widest width of the instruction set, and elementary functions on them.
//
// Based on the vector extensions of GCC and Clang, so one source serves x86-64-v2, AVX2, AVX-512 and NEON. Intrinsics
// are used only where no expression of the extensions compiles to the single instruction (fma, min, max).
//
// Accuracy, as measured by csrc/tests/kernels_simd.cpp: sigmoid 4 ulp above -87, tanh 3 ulp; exp and erf, through ELU
// and GELU, 2.5e-7 and 3.6e-7 relative to the terms that cancel.
// NaN arguments return NaN, infinities the limits.
#pragma once

#include "bf16.hpp"
#include "isa.hpp"
#include "shuffle.hpp"

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

// f32 lanes in a vector, and vectors in a block of 16 channels.
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

// kLanes adjacent bf16 values as f32, and back, rounded to nearest. The rounding instruction, where it exists, treats
// denormals as zero; a NaN always stays a NaN, and becomes quiet.
ENGINE_INLINE Vec load(const Bf16* from) {
  const HalfUnaligned half = *reinterpret_cast<const HalfUnaligned*>(from);
#if defined(__AVX512BW__)
  // One permutation instead of widening and shifting.
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

// Pairs of bf16, one in each 32 bits: kLanes adjacent pairs; one pair in all lanes; one pair whose second value is
// zero.
ENGINE_INLINE VecInt load_pairs(const Bf16* from) {
  return *reinterpret_cast<const IntUnaligned*>(from);
}
ENGINE_INLINE VecInt broadcast_pair(const Bf16* from) {
  return *reinterpret_cast<const Unaligned32*>(from) - VecInt{};
}
ENGINE_INLINE VecInt broadcast_first(const Bf16* from) {
  return static_cast<int32_t>(from->bits) - VecInt{};
}

// a * b + c, rounded once if the instruction set has FMA.
ENGINE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// c + a.first * b.first + a.second * b.second, lane by lane in f32; the order and rounding of the two sums depend on
// the CPU, which may treat denormals as zero.
ENGINE_INLINE Vec dot_pairs(VecInt a, VecInt b, Vec c) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
  const VecInt upper = (int32_t)0xffff0000 - VecInt{};
  return fma((Vec)(a << 16), (Vec)(b << 16), fma((Vec)(a & upper), (Vec)(b & upper), c));
#endif
}

// The larger (smaller) lane; `b` if either is NaN, so with a bound as `a` and data as `b`, a NaN is kept.
ENGINE_INLINE Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_max_ps((__mmask16)-1, (__m512)a, (__m512)b);  // gcc 12 warns about the unmasked intrinsic
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
  return (Vec)_mm512_maskz_min_ps((__mmask16)-1, (__m512)a, (__m512)b);  // gcc 12 warns about the unmasked intrinsic
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

// The lanes of x with lanes `half` apart exchanged. Unrolled, since the compiler makes no constant from a loop.
#if defined(__AVX512F__)
#define ENGINE_SWAP_LANES(x, half)                                                                                   \
  ENGINE_SHUFFLE(x, VecInt{0 ^ half, 1 ^ half, 2 ^ half, 3 ^ half, 4 ^ half, 5 ^ half, 6 ^ half, 7 ^ half, 8 ^ half, \
                           9 ^ half, 10 ^ half, 11 ^ half, 12 ^ half, 13 ^ half, 14 ^ half, 15 ^ half})
#elif defined(__AVX__)
#define ENGINE_SWAP_LANES(x, half) \
  ENGINE_SHUFFLE(x, VecInt{0 ^ half, 1 ^ half, 2 ^ half, 3 ^ half, 4 ^ half, 5 ^ half, 6 ^ half, 7 ^ half})
#else
#define ENGINE_SWAP_LANES(x, half) ENGINE_SHUFFLE(x, VecInt{0 ^ half, 1 ^ half, 2 ^ half, 3 ^ half})
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

// Sum and maximum over the lanes. A NaN in any lane makes the maximum NaN.
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

// x = n ln2 + r with |r| <= ln2 / 2, for |x| up to 2^22.
struct Reduced {
  Vec n, r;
};
ENGINE_INLINE Reduced reduce_exponent(Vec x) {
#if defined(__AVX512F__)
  const Vec n = (Vec)_mm512_maskz_roundscale_ps((__mmask16)-1, (__m512)(x * 1.44269504f), 8);
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const Vec n = fma(x, broadcast(1.44269504f), broadcast(kRound)) - kRound;
#endif
  const Vec r = fma(n, broadcast(-0.693359375f), x);
  return {n, fma(n, broadcast(2.12194440e-4f), r)};
}

// (e^r - 1 - r) / r^2 for |r| <= ln2 / 2.
ENGINE_INLINE Vec exp_tail(Vec r) {
  Vec p = broadcast(1.39421644e-3f);
  p = fma(p, r, broadcast(8.36377591e-3f));
  p = fma(p, r, broadcast(4.16663624e-2f));
  p = fma(p, r, broadcast(1.66665733e-1f));
  return fma(p, r, broadcast(0.5f));
}

// e^x = 2^n e^r. Results below the normal range become denormals: by a scaling instruction, or by applying 2^n as two
// factors. Below `least` the result is 0, but is not computed: CPUs take a hundred cycles for an underflow, or a
// denormal (e^-88).
ENGINE_INLINE Vec exp(Vec x, float least = -104.0f) {
#if defined(__AVX512F__)
  const Reduced parts = reduce_exponent(min(broadcast(89.0f), x));
  const Vec p = fma(fma(exp_tail(parts.r), parts.r, broadcast(1.0f)), parts.r, broadcast(1.0f));
  const __mmask16 is_result = _mm512_cmp_ps_mask((__m512)x, (__m512)broadcast(least), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(is_result, (__m512)p, (__m512)parts.n);
#else
  const VecInt is_result = ~(x < least);
  const Reduced parts = reduce_exponent(min(broadcast(89.0f), (Vec)((VecInt)x & is_result)));
  const Vec p = fma(fma(exp_tail(parts.r), parts.r, broadcast(1.0f)), parts.r, broadcast(1.0f));
  const VecInt exponent = __builtin_convertvector(parts.n, VecInt);
  const VecInt half = exponent >> 1;
  const Vec result = p * (Vec)((half + 127) << 23) * (Vec)((exponent - half + 127) << 23);
  return (Vec)((VecInt)result & is_result);
#endif
}

ENGINE_INLINE Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}

// m / (m + 2) with m = e^(2|x|) - 1, computed without cancellation as 2^n (e^r - 1) + (2^n - 1).
ENGINE_INLINE Vec tanh(Vec x) {
  const Reduced parts = reduce_exponent(min(broadcast(20.0f), abs(x + x)));
#if defined(__AVX512F__)
  const Vec scale = (Vec)_mm512_maskz_scalef_ps((__mmask16)-1, (__m512)broadcast(1.0f), (__m512)parts.n);
#else
  const Vec scale = (Vec)((__builtin_convertvector(parts.n, VecInt) + 127) << 23);
#endif
  const Vec m = fma(fma(exp_tail(parts.r), parts.r * parts.r, parts.r), scale, scale - 1.0f);
  return copy_sign(m / (m + 2.0f), x);
}

// x P(x^2) / Q(x^2), fitted for the smallest relative error up to where the function rounds to 1. All coefficients are
// positive, so no sum cancels. Results that round beyond 1 are clipped; a NaN passes every bound.
ENGINE_INLINE Vec erf(Vec x) {
  constexpr float kOne = 3.925f;
  const Vec a = min(broadcast(kOne), abs(x)), z = a * a;
  Vec p = broadcast(2.04602429e-6f);
  p = fma(p, z, broadcast(2.84845184e-4f));
  p = fma(p, z, broadcast(0.00377260288f));
  p = fma(p, z, broadcast(0.0527694635f));
  p = fma(p, z, broadcast(0.190594912f));
  p = fma(p, z, broadcast(1.12837911f));
  Vec q = broadcast(3.80478305e-5f);
  q = fma(q, z, broadcast(0.00116387149f));
  q = fma(q, z, broadcast(0.0149833038f));
  q = fma(q, z, broadcast(0.11418321f));
  q = fma(q, z, broadcast(0.502243102f));
  q = fma(q, z, broadcast(1.0f));
  const Vec inside = min(broadcast(1.0f), a * p / q);
  return copy_sign(a >= kOne ? broadcast(1.0f) : inside, x);
}

}  // namespace engine::ENGINE_ISA_NS::simd
