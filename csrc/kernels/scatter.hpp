// Updates written where indices say, into a copy of the data or into the data itself. Indices as of gather.hpp; an
// update whose index is out of range is left out. Updates of one place take effect in the order in which they lie.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/gather.hpp"

namespace engine {

// What elements are taken for: bytes where updates replace them.
enum class ScatterType : std::int32_t { kBytes1, kBytes2, kBytes4, kBytes8, kF32, kF64, kI32, kI64 };

struct ScatterCopyArgs {
  std::int64_t bytes;
};

// destination[p with p[axis] replaced by indices[p]] op= updates[p].
struct ScatterElementsArgs {
  ScatterOp op;
  ScatterType type;
  std::int64_t rank, axis;
  std::int64_t split;  // the dimension whose indices the workers share; the axis: one worker does all
  std::int64_t index_bytes;
  std::int64_t axis_size;
  std::int64_t shape[kMaxGatherDims];   // of the indices
  std::int64_t stride[kMaxGatherDims];  // of the data, in elements
};

// destination[tuples[i]] op= updates[i], slices of elements, each of which the workers share.
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
