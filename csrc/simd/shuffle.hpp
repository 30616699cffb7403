// Shuffles of lanes by index, for GCC and Clang, whose builtins differ.
//
//   ENGINE_SHUFFLE(a, index)      lane i is a[index[i]]
//   ENGINE_SHUFFLE(a, b, index)   the same for the concatenation of a and b
//
// Indices are taken modulo the number of lanes. Constant indices compile to one or two instructions.
#pragma once

#include "simd/isa.hpp"

#if !defined(__clang__)

#define ENGINE_SHUFFLE(...) __builtin_shuffle(__VA_ARGS__)

#else

namespace engine::ENGINE_ISA_NS::simd {

// Clang's builtin needs literal indices; it compiles lane-by-lane assignment to the same instruction.
template <class Vector, class Index>
ENGINE_INLINE Vector shuffle_lanes(Vector a, Index index) {
  constexpr int kCount = sizeof(Index) / sizeof(index[0]);
  Vector lanes{};
#pragma unroll
  for (int i = 0; i < kCount; ++i) lanes[i] = a[index[i] & (kCount - 1)];
  return lanes;
}

template <class Vector, class Index>
ENGINE_INLINE Vector shuffle_lanes(Vector a, Vector b, Index index) {
  constexpr int kCount = sizeof(Index) / sizeof(index[0]);
  Vector lanes{};
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    lanes[i] = index[i] & kCount ? b[index[i] & (kCount - 1)] : a[index[i] & (kCount - 1)];
  return lanes;
}

}  // namespace engine::ENGINE_ISA_NS::simd

#define ENGINE_SHUFFLE(...) shuffle_lanes(__VA_ARGS__)

#endif
