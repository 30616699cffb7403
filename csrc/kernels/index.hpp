// Reads indices of 4 or 8 bytes.
#pragma once

#include "kernels/kernel.hpp"
#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {

ENGINE_INLINE std::int64_t load_index(const void* indices, std::int64_t at, std::int64_t index_bytes) {
  const char* const from = static_cast<const char*>(indices) + at * index_bytes;
  if (index_bytes == 4) {
    std::int32_t value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
  std::int64_t value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

// The position of an index in a dimension of `size`, or -1 and a fault.
ENGINE_INLINE std::int64_t resolve_index(std::int64_t index, std::int64_t size, const KernelContext& context) {
  const std::int64_t at = index < 0 ? index + size : index;
  if (at >= 0 && at < size) return at;
  report_index(context, index, size);
  return -1;
}

}  // namespace engine::ENGINE_ISA_NS
