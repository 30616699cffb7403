// Gathers elements, rows and slices by index; and one-hot vectors. Indices have 4 or 8 bytes; negative indices count
// from the end; an index out of range yields zeros and a fault.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxGatherDims = 12;

// destination[o][i] = data[o][indices[i]], blocks of bytes.
struct GatherArgs {
  std::int64_t outer, axis, count;
  std::int64_t block;  // bytes of the dimensions after the axis
  std::int64_t index_bytes;
};

// destination[p] = data[p with p[axis] replaced by indices[p]].
struct GatherElementsArgs {
  std::int64_t rank, axis;
  std::int64_t element;
  std::int64_t index_bytes;
  std::int64_t rows;                    // of the indices: the product of all dimensions but the last
  std::int64_t axis_size;               // of the data
  std::int64_t shape[kMaxGatherDims];   // of the indices
  std::int64_t stride[kMaxGatherDims];  // of the data, in bytes
};

// destination[b][i] = data[b][tuples[b][i]], blocks of bytes.
struct GatherNdArgs {
  std::int64_t batch, count;
  std::int64_t depth;  // indices in a tuple
  std::int64_t block;
  std::int64_t index_bytes;
  std::int64_t batch_stride;  // of the data, in bytes
  std::int64_t size[kMaxGatherDims];
  std::int64_t stride[kMaxGatherDims];  // bytes
};

// destination[o][d][i] = values[indices[o][i] == d]; an index out of range equals no d.
struct OneHotArgs {
  std::int64_t outer, depth, inner;
  std::int64_t element;
  std::int64_t index_bytes;
};

}  // namespace engine
