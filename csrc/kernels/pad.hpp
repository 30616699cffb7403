// Padding, filling and triangles, of elements of any size: blocks of bytes that stay together.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxPadDims = 12;

struct PadArgs {
  PadMode mode;
  std::int32_t rank;     // one at least
  std::int64_t block;    // bytes of what lies at one index of all dimensions
  std::int64_t pattern;  // eight bytes of the constant, repeated
  std::int64_t rows;     // of the destination: its elements without those of the last dimension
  std::int64_t skip;     // bytes of the source before what is padded
  std::int64_t in[kMaxPadDims];
  std::int64_t out[kMaxPadDims];
  std::int64_t begin[kMaxPadDims];   // what precedes the first element; negative: elements left out
  std::int64_t stride[kMaxPadDims];  // bytes, of the source
};

struct FillArgs {
  std::int64_t bytes;
  std::int64_t pattern;
};

struct TriluArgs {
  std::int64_t matrices, rows, columns;
  std::int64_t element;   // bytes
  std::int64_t diagonal;  // element (r, c) is on it where c = r + diagonal
  std::int64_t upper;     // 1: keeps the diagonal and what is right of it; 0: and what is left of it
};

}  // namespace engine
