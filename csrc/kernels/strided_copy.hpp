// Copies between n-dimensional arrays with strides: for Transpose, Slice, Concat, Split, Expand, Tile, DepthToSpace and
// Flip. One step has any number of such copies, between any of its operands.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxCopyDims = 12;

enum class CopyMode : std::int32_t {
  run,         // columns are contiguous in both
  fill,        // columns repeat one element
  transpose,   // columns are contiguous in the destination, rows in the source
  interleave,  // as transpose, with two to four columns, and contiguous rows in the destination
  element      // anything else
};

// A matrix of rows and columns for each index of the outer dimensions. Strides and offsets are bytes; strides of the
// source may be zero or negative.
struct CopyPart {
  CopyMode mode;
  std::int32_t element;  // bytes: 1, 2, 4, 8 or 16; of a run, 1
  std::int32_t source;   // operands
  std::int32_t destination;
  std::int32_t outer_rank;
  std::int64_t source_offset;
  std::int64_t destination_offset;
  std::int64_t rows, row_block, row_blocks, source_row, destination_row;
  std::int64_t columns, column_block, column_blocks, source_column, destination_column;
  std::int64_t end_item;  // the step's items below this index belong to this part or an earlier one
  std::int64_t outer_size[kMaxCopyDims];
  std::int64_t outer_source[kMaxCopyDims];
  std::int64_t outer_destination[kMaxCopyDims];
};

// Followed by its parts.
struct alignas(8) StridedCopyArgs {
  std::int64_t parts;
  std::int64_t items;
};

}  // namespace engine
