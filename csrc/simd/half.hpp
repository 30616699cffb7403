// f16 (IEEE binary16) as stored: numbers are computed in f32.
#pragma once

#include "simd/vec.hpp"

namespace engine {

struct F16 {
  std::uint16_t bits;
};

// For values that are exact in f16.
ENGINE_INLINE F16 to_f16(float value) {
  // Multiplied by 2^-112, the exponents of f16 become those of f32, and f16's denormals become denormals of f32.
  std::uint32_t bits;
  value *= 0x1p-112f;
  std::memcpy(&bits, &value, sizeof bits);
  return {static_cast<std::uint16_t>((bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff))};
}

namespace ENGINE_ISA_NS::simd {

// kLanes adjacent finite f16 values as f32.
ENGINE_INLINE Vec load(const F16* from) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtph_ps((__mmask16)-1, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
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
