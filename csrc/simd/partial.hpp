// Loads and stores of the first lanes of a vector only, for the tails of rows.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

// All bits set in the first `count` lanes, 0 <= count; none in the others.
ENGINE_INLINE VecInt first_lanes(int64_t count) {
  VecInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < static_cast<int32_t>(count < kLanes ? count : kLanes);
}

// The first `count` lanes from memory, 0 <= count <= kLanes, the others from `otherwise`. Reads no other memory.
ENGINE_INLINE Vec load_partial(const float* from, int64_t count, Vec otherwise) {
#if defined(__AVX512F__)
  return (Vec)_mm512_mask_loadu_ps((__m512)otherwise, static_cast<__mmask16>((1u << count) - 1), from);
#elif defined(__AVX2__)
  const VecInt mask = first_lanes(count);
  const Vec loaded = (Vec)_mm256_maskload_ps(from, (__m256i)mask);
  return mask ? loaded : otherwise;
#else
  for (int i = 0; i < kLanes; ++i)
    if (i < count) otherwise[i] = from[i];
  return otherwise;
#endif
}

// Writes the first `count` lanes, 0 <= count <= kLanes, and nothing else.
ENGINE_INLINE void store_partial(float* to, Vec value, int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)value);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(to, (__m256i)first_lanes(count), (__m256)value);
#else
  for (int i = 0; i < kLanes; ++i)
    if (i < count) to[i] = value[i];
#endif
}

}  // namespace engine::ENGINE_ISA_NS::simd
