// Transposition of a square of floats that fills a vector register a row.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

// rows[i][j] becomes rows[j][i]: log2(kLanes) rounds, each exchanging halves between rows `half` apart.
ENGINE_INLINE void transpose_square(Vec (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    VecInt low{}, high{};
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      low[i] = i & half ? (i - half) + kLanes : i;
      high[i] = i & half ? i + kLanes : i + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      const Vec a = rows[i], b = rows[i + half];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + half] = __builtin_shuffle(a, b, high);
    }
  }
}

}  // namespace engine::ENGINE_ISA_NS::simd
