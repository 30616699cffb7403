// bfloat16: the upper half of an f32, with its range and eight bits of precision.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/isa.hpp"

namespace engine {

struct Bf16 {
  std::uint16_t bits;
};

ENGINE_INLINE float to_f32(Bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Rounds to nearest, ties to even; a NaN stays a NaN, and becomes quiet.
ENGINE_INLINE Bf16 to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace engine
