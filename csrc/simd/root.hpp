// Square roots of vectors.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

ENGINE_INLINE Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_sqrt_ps((__mmask16)-1, (__m512)x);  // gcc 12 warns about the unmasked intrinsic
#elif defined(__AVX__)
  return (Vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE__)
  return (Vec)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
  return (Vec)vsqrtq_f32((float32x4_t)x);
#else
  for (int l = 0; l < kLanes; ++l) x[l] = __builtin_sqrtf(x[l]);
  return x;
#endif
}

}  // namespace engine::ENGINE_ISA_NS::simd
