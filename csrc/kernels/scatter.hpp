// Writes updates at indices, into a copy of the data or in place. Indices are as in gather.hpp; an update whose index
// is out of range is skipped. Updates of one element are applied in memory order.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/gather.hpp"

namespace engine {

// The element type; only a size in bytes if updates replace elements.
enum class ScatterType : std::int32_t { kBytes1, kBytes2, kBytes4, kBytes8, kF32, kF64, kI32, kI64 };

struct ScatterCopyArgs {
  std::int64_t bytes;
};

// destination[p with p[axis] replaced by indices[p]] op= updates[p].
struct ScatterElementsArgs {
  ScatterOp op;
  ScatterType type;
  std::int64_t rank, axis;
  std::int64_t split;  // the dimension whose indices are divided among workers; if it is the axis, one worker does all
  std::int64_t index_bytes;
  std::int64_t axis_size;
  std::int64_t shape[kMaxGatherDims];   // of the indices
  std::int64_t stride[kMaxGatherDims];  // of the data, in elements
};

// destination[tuples[i]] op= updates[i], for slices of elements; each slice is divided among the workers.
struct ScatterNdArgs {
  ScatterOp op;
  ScatterType type;
  std::int64_t count;
  std::int64_t depth;
  std::int64_t slice;  // elements
  std::int64_t index_bytes;
  std::int64_t size[kMaxGatherDims];
  std::int64_t stride[kMaxGatherDims];  // elements
};

}  // namespace engine
