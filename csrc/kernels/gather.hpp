// Elements, rows and slices taken from where indices say; and one-hot vectors. Indices have 4 or 8 bytes; negative ones
// count from the end; one out of range gives zeros and a fault.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxGatherDims = 12;

// destination[o][i] = data[o][indices[i]], blocks of bytes.
struct GatherArgs {
  std::int64_t outer, axis, count;
  std::int64_t block;  // bytes of what follows the axis
  std::int64_t index_bytes;
};

// destination[p] = data[p with p[axis] replaced by indices[p]].
struct GatherElementsArgs {
  std::int64_t rank, axis;
  std::int64_t element;
  std::int64_t index_bytes;
  std::int64_t rows;                    // of the indices: their number without the last dimension
  std::int64_t axis_size;               // of the data
  std::int64_t shape[kMaxGatherDims];   // of the indices
  std::int64_t stride[kMaxGatherDims];  // of the data, in bytes
};

// destination[b][i] = data[b][tuples[b][i]], blocks of bytes.
struct GatherNdArgs {
  std::int64_t batch, count;
  std::int64_t depth;  // indices of a tuple
  std::int64_t block;
  std::int64_t index_bytes;
  std::int64_t batch_stride;  // bytes of the data
  std::int64_t size[kMaxGatherDims];
  std::int64_t stride[kMaxGatherDims];  // bytes
};

// destination[o][d][i] = values[indices[o][i] == d]; an index out of range is equal to no d.
struct OneHotArgs {
  std::int64_t outer, depth, inner;
  std::int64_t element;
  std::int64_t index_bytes;
};

}  // namespace engine
