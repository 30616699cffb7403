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
#elif defined(__aarch64__)
#include <arm_neon.h>
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
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  *reinterpret_cast<HalfUnaligned*>(to) = (HalfUnaligned)vcvt_bf16_f32((float32x4_t)value);
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
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// c + a.first * b.first + a.second * b.second, lane by lane in f32; the order and rounding of the two sums depend on
// the CPU, which may treat denormals as zero.
ENGINE_INLINE Vec dot_pairs(VecInt a, VecInt b, Vec c) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (Vec)vbfdotq_f32((float32x4_t)c, (bfloat16x8_t)a, (bfloat16x8_t)b);
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
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const Vec n = fma(x, broadcast(1.44269504f), broadcast(kRound)) - kRound;
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

// x 2^n for integers n from -126 to 127.
ENGINE_INLINE Vec scale_by_power(Vec x, Vec n) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_scalef_ps((__mmask16)-1, (__m512)x, (__m512)n);
#else
  return x * (Vec)((__builtin_convertvector(n, VecInt) + 127) << 23);
#endif
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

// Below -87, where the result leaves the normal range: 0.
ENGINE_INLINE Vec sigmoid(Vec x) {
  constexpr float kMinArgument = -87.0f;
  const Reduced parts = reduce_exponent(max(broadcast(kMinArgument), min(broadcast(-kMinArgument), -x)));
  const Vec p = fma(fma(exp_tail(parts.r), parts.r, broadcast(1.0f)), parts.r, broadcast(1.0f));
  const Vec result = 1.0f / (1.0f + scale_by_power(p, parts.n));
  return x < kMinArgument ? zero() : result;
}

// m / (m + 2) with m = e^(2|x|) - 1, computed without cancellation as 2^n (e^r - 1) + (2^n - 1).
ENGINE_INLINE Vec tanh(Vec x) {
  const Reduced parts = reduce_exponent(min(broadcast(20.0f), abs(x + x)));
  const Vec scale = scale_by_power(broadcast(1.0f), parts.n);
  const Vec m = fma(fma(exp_tail(parts.r), parts.r * parts.r, parts.r), scale, scale - 1.0f);
  return copy_sign(m / (m + 2.0f), x);
}

// e^x - 1 for x <= 0, 0 for others: without cancellation, as in tanh. It rounds to -1 below -17.4.
ENGINE_INLINE Vec exp_minus_one(Vec x) {
  const Reduced parts = reduce_exponent(min(zero(), max(broadcast(-18.0f), x)));
  const Vec scale = scale_by_power(broadcast(1.0f), parts.n);
  return fma(fma(exp_tail(parts.r), parts.r * parts.r, parts.r), scale, scale - 1.0f);
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

#if defined(__AVX512F__)
// table[lowest 4 bits of at], per lane.
ENGINE_INLINE Vec look_up(const float (&table)[16], Vec at) {
  return (Vec)_mm512_maskz_permutexvar_ps((__mmask16)-1, (__m512i)at, (__m512)load(table));
}

// A function of x >= 0 that rounds to 1 from 14.5 / kGateSteps = 5.5: coefficient d of its polynomial around i /
// kGateSteps is row d, column i. Fitted by least squares at the nodes of Chebyshev polynomials, |x - i / kGateSteps| <=
// 0.5 / kGateSteps, with an error below 5e-8.
using GateTable = float[6][16];
constexpr float kGateSteps = 14.5f / 5.5f;
// erf(x / sqrt(2)).
alignas(64) constexpr GateTable kErfTable = {
    {3.28808994e-11f, 0.295542568f, 0.551920474f, 0.744850695f, 0.870794237f, 0.942112863f, 0.977145731f, 0.992073238f,
     0.997590542f, 0.999359369f, 0.999851227f, 0.99996984f, 0.999994695f, 0.999999166f, 0.999999881f, 1.0f},
    {0.302645862f, 0.281638741f, 0.226968378f, 0.158399433f, 0.0957320035f, 0.0501044169f, 0.0227096342f,
     0.00891373213f, 0.0030298722f, 0.000891875941f, 0.000227352633f, 5.01892937e-05f, 9.5948426e-06f, 1.58847558e-06f,
     2.27740045e-07f, 0.0f},
    {1.0321034e-07f, -0.020260023f, -0.0326547511f, -0.0341846347f, -0.0275472905f, -0.0180223901f, -0.00980233494f,
     -0.00448871637f, -0.00174368115f, -0.000577399449f, -0.000163527395f, -3.97041149e-05f, -8.27879467e-06f,
     -1.4844228e-06f, -2.29113155e-07f, 0.0f},
    {-0.00725808926f, -0.00578177255f, -0.00231038337f, 0.00111997256f, 0.00298884814f, 0.00312011712f, 0.0022760611f,
     0.00129317655f, 0.00059636333f, 0.000227851371f, 7.29826643e-05f, 1.97459558e-05f, 4.53566645e-06f, 8.8774118e-07f,
     1.48450454e-07f, 0.0f},
    {2.83568238e-06f, 0.000687899999f, 0.000942541636f, 0.000696121831f, 0.000232129169f, -0.000125872422f,
     -0.000254046085f, -0.000217393143f, -0.000130075437f, -6.03396657e-05f, -2.26062457e-05f, -6.98499889e-06f,
     -1.80216239e-06f, -3.91379558e-07f, -7.19432904e-08f, 0.0f},
    {0.000152835783f, 0.00010417548f, -4.41340444e-06f, -8.36761392e-05f, -9.05131164e-05f, -4.87867292e-05f,
     -5.16013597e-06f, 1.57809573e-05f, 1.69354644e-05f, 1.06114167e-05f, 4.88015303e-06f, 1.76503875e-06f,
     5.18064155e-07f, 1.25571347e-07f, 2.54095749e-08f, 0.0f},
};
// tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
alignas(64) constexpr GateTable kTanhTable = {
    {3.44328802e-11f, 0.295510113f, 0.551732183f, 0.744503379f, 0.87051326f, 0.942123234f, 0.977428794f, 0.992428482f,
     0.997853756f, 0.999496281f, 0.999904275f, 0.999985576f, 0.999998331f, 0.999999881f, 1.0f, 1.0f},
    {0.302645862f, 0.281548023f, 0.226770148f, 0.158325121f, 0.0959391221f, 0.0504327267f, 0.0228934884f,
     0.00888337661f, 0.00290065049f, 0.000781322306f, 0.000169781211f, 2.90760727e-05f, 3.83295219e-06f,
     3.79912677e-07f, 2.7659766e-08f, 0.0f},
    {1.0807959e-07f, -0.0203345623f, -0.0326624922f, -0.0340599157f, -0.0274222661f, -0.0180356987f, -0.00991357863f,
     -0.00457471097f, -0.00175763457f, -0.000552845362f, -0.000139329451f, -2.74857011e-05f, -4.14486567e-06f,
     -4.66701636e-07f, -3.83314784e-08f, 0.0f},
    {-0.00729404856f, -0.00578620797f, -0.00226613833f, 0.00115062227f, 0.00295815547f, 0.00307069463f, 0.00226506218f,
     0.00131557079f, 0.00061709783f, 0.000232864099f, 6.9515816e-05f, 1.60672062e-05f, 2.81078997e-06f, 3.63860295e-07f,
     3.40828628e-08f, 0.0f},
    {2.96934559e-06f, 0.000701239158f, 0.000949015433f, 0.000683611375f, 0.000219188267f, -0.000121662335f,
     -0.00024263456f, -0.000213582171f, -0.00013342638f, -6.37541671e-05f, -2.34644413e-05f, -6.56842576e-06f,
     -1.37335394e-06f, -2.10353093e-07f, -2.31422028e-08f, 0.0f},
    {0.000156237904f, 0.000105224455f, -7.96487984e-06f, -8.64424583e-05f, -8.79872532e-05f, -4.55844565e-05f,
     -5.60025228e-06f, 1.380504e-05f, 1.62574142e-05f, 1.10657866e-05f, 5.31441492e-06f, 1.85564659e-06f,
     4.69719481e-07f, 8.51925535e-08f, 1.09072849e-08f, 0.0f},
};

// x / 2 (1 + g(x)) for an odd function g, whose positive half is in the table. It takes 19 operations; erf as a
// quotient takes 26, including a division. The low bits of a sum with 2^23 are the rounded integer.
ENGINE_INLINE Vec gated(Vec x, const GateTable& table) {
  constexpr float kInteger = 8388608.0f;
  const Vec a = min(broadcast(15.0f / kGateSteps), abs(x));
  const Vec shifted = fma(a, broadcast(kGateSteps), broadcast(kInteger));
  const Vec u = fma(a, broadcast(kGateSteps), kInteger - shifted);
  Vec g = look_up(table[5], shifted);
#pragma GCC unroll 5
  for (int d = 4; d >= 0; --d) g = fma(g, u, look_up(table[d], shifted));
  const Vec half = 0.5f * x;
  return fma(half, copy_sign(g, x), half);
}
#endif

// x / 2 (1 + erf(x / sqrt(2))).
ENGINE_INLINE Vec gelu(Vec x) {
#if defined(__AVX512F__)
  return gated(x, kErfTable);
#else
  return 0.5f * x * (1.0f + erf(x * 0.70710678f));
#endif
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
ENGINE_INLINE Vec gelu_tanh(Vec x) {
#if defined(__AVX512F__)
  return gated(x, kTanhTable);
#else
  return 0.5f * x * (1.0f + tanh(0.79788456f * fma(0.044715f * x * x, x, x)));
#endif
}

}  // namespace engine::ENGINE_ISA_NS::simd
