// Conversions of the rows of cache_rows.hpp. Included by kernel files only.
#pragma once

#include <cstring>

#include "kernels/cache_rows.hpp"
#include "simd/bytes.hpp"
#include "simd/half.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// A row as f32.
ENGINE_INLINE void widen_row(CacheFormat format, const char* from, std::int64_t size, float* to) {
  using namespace simd;
  std::int64_t i = 0;
  if (format == CacheFormat::kBf16) {
    const auto* row = reinterpret_cast<const Bf16*>(from);
    for (; i + kLanes <= size; i += kLanes) store(to + i, load(row + i));
    for (; i < size; ++i) to[i] = to_f32(row[i]);
  } else if (format == CacheFormat::kF16) {
    const auto* row = reinterpret_cast<const F16*>(from);
#if defined(__AVX512F__) || defined(__F16C__) || defined(__aarch64__)
    for (; i + kLanes <= size; i += kLanes) store(to + i, load(row + i));
#endif
    for (; i < size; ++i) to[i] = to_f32(row[i]);
  } else if (format == CacheFormat::kInt8) {
    const auto* row = reinterpret_cast<const std::int8_t*>(from);
    float scale;
    std::memcpy(&scale, from + size, sizeof scale);
    for (; i + kLanes <= size; i += kLanes) store(to + i, load_signed_bytes(row + i) * scale);
    for (; i < size; ++i) to[i] = static_cast<float>(row[i]) * scale;
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
  }
}

// One element of a row.
ENGINE_INLINE float cache_value(CacheFormat format, const char* row, std::int64_t size, std::int64_t at) {
  float value;
  if (format == CacheFormat::kBf16) return to_f32(reinterpret_cast<const Bf16*>(row)[at]);
  if (format == CacheFormat::kF16) return to_f32(reinterpret_cast<const F16*>(row)[at]);
  std::memcpy(&value, format == CacheFormat::kInt8 ? row + size : row + at * 4, sizeof value);
  return format == CacheFormat::kInt8 ? static_cast<float>(reinterpret_cast<const std::int8_t*>(row)[at]) * value
                                      : value;
}

// The scale of a row of i8, NaN if an element is not finite.
ENGINE_INLINE float cache_scale(const float* from, std::int64_t size) {
  std::int32_t top = 0;  // bits of magnitudes are ordered as these are
  for (std::int64_t i = 0; i < size; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    bits &= 0x7fffffff;
    top = bits > top ? bits : top;
  }
  float largest;
  std::memcpy(&largest, &top, sizeof largest);
  if (!(largest < __builtin_inff())) return __builtin_nanf("");
  if (largest < 1e-30f) return 0.0f;
  float scale = largest / 127.0f;
  std::uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  bits = (bits + 0xff) & ~0xffu;  // rounded up, so that no code exceeds 127
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}

ENGINE_INLINE void narrow_row(CacheFormat format, const float* from, std::int64_t size, char* to) {
  using namespace simd;
  std::int64_t i = 0;
  if (format == CacheFormat::kBf16) {
    auto* row = reinterpret_cast<Bf16*>(to);
    for (; i + kLanes <= size; i += kLanes) store(row + i, load(from + i));
    for (; i < size; ++i) row[i] = to_bf16(from[i]);
  } else if (format == CacheFormat::kF16) {
    auto* row = reinterpret_cast<F16*>(to);
    for (; i < size; ++i) row[i] = round_to_f16(from[i]);
  } else if (format == CacheFormat::kInt8) {
    const float scale = cache_scale(from, size);
    auto* row = reinterpret_cast<std::int8_t*>(to);
    const bool has_codes = scale > 0.0f;
    for (; i < size; ++i) {
      const float code = has_codes ? from[i] / scale : 0.0f;
      row[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(code + (code < 0.0f ? -0.5f : 0.5f)));
    }
    std::memcpy(to + size, &scale, sizeof scale);
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
  }
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
