// Converts a copy between strided arrays to a part of a step; without operands, so that tests can use it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/prepare.hpp"
#include "kernels/strided_copy.hpp"

namespace engine {

// One dimension: its size, and the bytes from one element to the next.
struct CopyDim {
  std::int64_t size;
  std::int64_t source;
  std::int64_t destination;
};

struct CopyRequest {
  std::int32_t source = 0;
  std::int32_t destination = 0;
  std::int64_t source_offset = 0;
  std::int64_t destination_offset = 0;
  std::vector<CopyDim> dims;
};

// Throws PlanError if an element is outside its buffer, or two elements overlap in the destination.
void check_copy(const CopyRequest& copy, std::int64_t element, std::size_t source_bytes, std::size_t destination_bytes);

// Drops, orders and merges dimensions, and chooses a copy mode for the rest. Items are numbered from `first_item`.
CopyPart make_copy_part(CopyRequest copy, std::int64_t element, std::int64_t first_item);

// The arguments of a step with these copies; parts without elements are omitted.
PreparedPhase make_strided_copy(const KernelEntry& kernel, const std::vector<CopyRequest>& copies,
                                std::int64_t element);

}  // namespace engine
