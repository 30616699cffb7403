// Activations as integers of 8 or 24 bits (gemm_weights.hpp, expert_matmul.hpp), as vectors. Included by kernel files
// only.
#pragma once

#include <cstring>

#include "simd/bytes.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// The largest magnitude of a run; infinite or NaN if a value is.
ENGINE_INLINE float largest(const float* x, std::int64_t count) {
  using namespace simd;
  VecInt best{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VecInt bits = (VecInt)load(x + i) & 0x7fffffff;
    best = bits > best ? bits : best;
  }
  std::int32_t top = 0;
  for (int l = 0; l < kLanes; ++l)
    if (best[l] > top) top = best[l];
  for (; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    if (bits > top) top = bits;
  }
  float result;
  std::memcpy(&result, &top, sizeof result);
  return result;
}

// The unit of a run, and the factor that turns its values into integers: NaN and 0 if a value is not finite.
struct Unit {
  float unit, factor;
};
ENGINE_INLINE Unit unit_of(float top, int digits) {
  if (!(top < __builtin_inff())) return {__builtin_nanf(""), 0.0f};
  if (digits == 1) {
    const float bounded = top < 1e-30f ? 1e-30f : top;
    return {bounded / 127.0f, 127.0f / bounded};
  }
  // The smallest power of two for which all digits are at most 127: integers are at most 0x7f7f7f, which is 2^23
  // / 1.004. Units below the normal range are not used.
  std::int32_t bits;
  top *= 1.005f;
  std::memcpy(&bits, &top, sizeof bits);
  std::int32_t exponent = (bits >> 23) - 22;
  if (exponent < 1) exponent = 1;
  const std::int32_t pair[2] = {exponent << 23, (254 - exponent) << 23};
  Unit result;
  std::memcpy(&result, pair, sizeof result);
  return result;
}

// Values of a run as integers; those of a run with the factor 0 are undefined.
ENGINE_INLINE simd::VecInt integers_of(simd::Vec values, float factor) {
  using namespace simd;
  const Vec scaled = values * factor;
  return __builtin_convertvector(scaled + copy_sign(broadcast(0.5f), scaled), VecInt);
}

// The signed digits of integers as bytes, from the most significant one on.
template <int kDigits>
ENGINE_INLINE simd::VecInt biased_digits(simd::VecInt integers) {
  return integers + (kDigits == 3 ? 0x808080 : 0x80);  // makes all digits unsigned
}
template <int kDigits>
ENGINE_INLINE simd::VecInt digit_of(simd::VecInt biased, int digit) {
  return ((biased >> (8 * (kDigits - 1 - digit))) & 255) ^ 128;
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
