// Arithmetic without denormal results.
#pragma once

#include "isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine::ENGINE_ISA_NS::simd {

// While it exists, results below the normal range (1.2e-38) are zero in this thread. Intel's CPUs take more than a
// hundred cycles for each such result: for a sum of small probabilities times values, for instance, until a large one
// is added. Does nothing on CPUs other than x86.
class NoDenormals {
 public:
#if defined(__x86_64__)
  ENGINE_ALWAYS_INLINE NoDenormals() : state_(_mm_getcsr()) { _mm_setcsr(state_ | kFlushToZero); }
  ENGINE_ALWAYS_INLINE ~NoDenormals() { _mm_setcsr(state_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  unsigned state_;
#else
  ENGINE_ALWAYS_INLINE NoDenormals() {}
#endif

 public:
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;
};

}  // namespace engine::ENGINE_ISA_NS::simd
