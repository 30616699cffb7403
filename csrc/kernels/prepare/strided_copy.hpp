// How a copy between strided arrays becomes a part of a step; apart from the operands, so that tests can make one.
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

// Throws PlanError where an element lies outside of its buffer, or two lie in the same place of the destination.
void check_copy(const CopyRequest& copy, std::int64_t element, std::size_t source_bytes, std::size_t destination_bytes);

// Drops, orders and merges dimensions, and chooses how to walk what is left. Items are numbered from `first_item`.
CopyPart make_copy_part(CopyRequest copy, std::int64_t element, std::int64_t first_item);

// The arguments of a step of these copies; the parts without elements are left out.
PreparedPhase make_strided_copy(const KernelEntry& kernel, const std::vector<CopyRequest>& copies,
                                std::int64_t element);

}  // namespace engine
