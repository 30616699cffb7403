// Quantization of vectors of f32 to 8-bit integers, with exactly the codes that a division gives. Included by kernel
// files only.
#pragma once

#include "kernels/requantize_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// round(x / scale) + zero_point, ties to even, saturated; zero_point if NaN.
//
// A division takes as long as eight multiplications. With FMA, the quotient q = x * (1 / scale) is corrected instead:
// q + (x - q * scale) * (1 / scale). Its error is below 2^-21 of the last place of the exact quotient. That matters
// only if the exact quotient is that close to a midpoint between floats that is next to a multiple of 1/2. There are a
// few thousand such pairs of scales and x of 24 bits, and the codes are right for all of them, as
// csrc/tests/kernels_quantize.cpp proves by enumeration.
class Quantizer {
 public:
  ENGINE_ALWAYS_INLINE Quantizer(float scale, std::int32_t zero_point)
      : scale_(simd::broadcast(scale)),
        reciprocal_(simd::broadcast(1.0f / scale)),
        least_(simd::broadcast(scale * 0.25f)),
        most_(simd::broadcast(scale * kBound)),
        zero_point_(zero_point - simd::VecInt{}) {}

  // Whether `codes` may be used: no product overflows, and no remainder is a denormal.
  ENGINE_ALWAYS_INLINE static bool fits(float scale) { return kHasFma && scale >= 0x1p-100f && scale <= 0x1p100f; }

  // Codes in i32, which are not saturated, but within 16 bits.
  ENGINE_ALWAYS_INLINE simd::VecInt codes(simd::Vec x) const {
    using namespace simd;
    // Small values and NaN become 0: a quotient that is a denormal would take a hundred cycles.
#if defined(__AVX512F__)
    const __mmask16 is_large = _mm512_cmp_ps_mask((__m512)abs(x), (__m512)least_, _CMP_GE_OQ);
    const Vec above = (Vec)_mm512_maskz_max_ps(is_large, (__m512)-most_, (__m512)x);
#else
    const Vec above = max(-most_, (Vec)((VecInt)x & (abs(x) >= least_)));
#endif
    const Vec value = min(most_, above), quotient = value * reciprocal_;
    return round_to_ints(fma(fma(-quotient, scale_, value), reciprocal_, quotient)) + zero_point_;
  }

  // The same by a division, for any scale and zero point of each lane.
  ENGINE_ALWAYS_INLINE static simd::VecInt divided(simd::Vec x, simd::Vec scale, simd::Vec zero_point) {
    using namespace simd;
    const Vec quotient = x / scale, number = quotient == quotient ? quotient : zero();
    return round_to_ints(min(broadcast(kBound), max(broadcast(-kBound), number))) + round_to_ints(zero_point);
  }

 private:
  static constexpr float kBound = 512.0f;  // beyond the codes of any zero point
#if defined(__AVX512F__) || defined(__FMA__) || defined(__aarch64__)
  static constexpr bool kHasFma = true;
#else
  static constexpr bool kHasFma = false;
#endif
  simd::Vec scale_, reciprocal_, least_, most_;
  simd::VecInt zero_point_;
};

// Four vectors of codes as adjacent bytes, saturated to u8, or to i8 if kIsSigned.
template <bool kIsSigned>
ENGINE_INLINE void store_saturated_codes(std::uint8_t* to, const simd::VecInt (&codes)[4]) {
  using namespace simd;
#if defined(__AVX512BW__)
  store_saturated<4>(to, codes, _mm512_setzero_si512(), kIsSigned);
#elif defined(__AVX2__)
  const __m256i lower = _mm256_packs_epi32((__m256i)codes[0], (__m256i)codes[1]);
  const __m256i upper = _mm256_packs_epi32((__m256i)codes[2], (__m256i)codes[3]);
  const __m256i bytes = kIsSigned ? _mm256_packs_epi16(lower, upper) : _mm256_packus_epi16(lower, upper);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
#else
  constexpr std::int32_t kLow = kIsSigned ? -128 : 0, kHigh = kIsSigned ? 127 : 255;
  for (int v = 0; v < 4; ++v) {
    const VecInt above = codes[v] > kLow ? codes[v] : kLow - VecInt{};
    store_bytes(to + v * kLanes, above < kHigh ? above : kHigh - VecInt{});
  }
#endif
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
