// Steps between the pixels of a tile that are known at run time. Included by kernel files only.
#pragma once

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// There are not enough registers for a pointer to each pixel, but there are for some multiples of the step in bytes,
// which addresses scale by 1, 2, 4 or 8.
struct AnyStep {
  std::int64_t one, three, five, seven;
  explicit ENGINE_ALWAYS_INLINE AnyStep(std::int64_t bytes)
      : one(bytes), three(3 * bytes), five(5 * bytes), seven(7 * bytes) {}
  // Without this, the compiler would compute all multiples in advance, for which there are not enough registers.
  ENGINE_ALWAYS_INLINE void forget() { __asm__ volatile("" : "+r"(one), "+r"(three), "+r"(five), "+r"(seven)); }
  template <class Value>
  ENGINE_ALWAYS_INLINE const Value* eighth(const Value* from) const {
    return reinterpret_cast<const Value*>(reinterpret_cast<const char*>(from) + 8 * one);
  }
  // A pixel less than 8 from `from`.
  template <class Value>
  ENGINE_ALWAYS_INLINE const Value* at(const Value* from, int pixel) const {
    const int odd = pixel % 2 == 1 ? pixel : pixel == 6 ? 3 : 1;
    const std::int64_t multiple = odd == 7 ? seven : odd == 5 ? five : odd == 3 ? three : one;
    return reinterpret_cast<const Value*>(reinterpret_cast<const char*>(from) + multiple * (pixel / odd));
  }
};

// The addresses of the pixels of a tile.
template <class Value, int kPixels>
struct StepPixels {
  const Value* eighth[kPixels / 8 + 1];
  const AnyStep& step;
  ENGINE_ALWAYS_INLINE StepPixels(const Value* first, const AnyStep& between) : eighth{first}, step(between) {
#pragma GCC unroll 4
    for (int i = 1; i <= kPixels / 8; ++i) eighth[i] = step.eighth(eighth[i - 1]);
  }
  ENGINE_ALWAYS_INLINE const Value* operator()(int p) const { return step.at(eighth[p / 8], p % 8); }
};

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
