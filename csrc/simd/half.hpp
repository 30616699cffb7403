// f16 (IEEE binary16) as stored: numbers are computed in f32.
#pragma once

#include "simd/vec.hpp"

namespace engine {

struct F16 {
  std::uint16_t bits;
};

// For values that are exact in f16.
ENGINE_INLINE F16 to_f16(float value) {
  // A product with 2^-112 turns exponents of f16 into exponents of f32, and denormals of f16 into denormals of f32.
  std::uint32_t bits;
  value *= 0x1p-112f;
  std::memcpy(&bits, &value, sizeof bits);
  return {static_cast<std::uint16_t>((bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff))};
}

// Any f16 as f32; exact also where the CPU treats denormal f32 as zero.
ENGINE_INLINE float to_f32(F16 value) {
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  std::uint32_t bits = (magnitude << 13) + (112u << 23);
  if (magnitude < 0x400u) {  // denormal or zero
    const float small = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&bits, &small, sizeof bits);
  }
  if (magnitude >= 0x7c00u) bits = magnitude << 13 | 0x7f800000u;
  bits |= static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Rounds to nearest, ties to even; 65520 and above become infinity.
ENGINE_INLINE F16 round_to_f16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  float shifted;
  std::memcpy(&shifted, &magnitude, sizeof shifted);
  shifted += 0.5f;  // below 2^-14, rounds to multiples of 2^-24, the last place of denormal numbers
  std::uint32_t small;
  std::memcpy(&small, &shifted, sizeof small);
  std::uint32_t result = magnitude < 0x38800000u ? small - 0x3f000000u
                                                 : (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  if (magnitude >= 0x477ff000u) result = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return {static_cast<std::uint16_t>(result | (bits >> 16 & 0x8000u))};
}

namespace ENGINE_ISA_NS::simd {

// kLanes adjacent finite f16 values as f32.
ENGINE_INLINE Vec load(const F16* from) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtph_ps((__mmask16)-1, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
  const HalfUnaligned half = *reinterpret_cast<const HalfUnaligned*>(from);
  return (Vec)vcvt_f32_f16((float16x4_t)half);
#else
  // As f32 bits, a magnitude is 2^-112 times its value, also if it is a denormal of f16.
  const VecBits half = __builtin_convertvector(*reinterpret_cast<const HalfUnaligned*>(from), VecBits);
  const Vec magnitude = (Vec)((half & 0x7fff) << 13) * 0x1p112f;
  return (Vec)((VecBits)magnitude | (half & 0x8000) << 16);
#endif
}

// And back, for values that are exact in f16.
ENGINE_INLINE void store(F16* to, Vec value) {
  const VecBits bits = (VecBits)(value * 0x1p-112f);
  *reinterpret_cast<HalfUnaligned*>(to) =
      __builtin_convertvector((bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff), HalfUnaligned);
}

}  // namespace ENGINE_ISA_NS::simd
}  // namespace engine
