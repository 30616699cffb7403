// Padding, filling and triangles (Trilu), for elements of any size, as blocks of bytes.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxPadDims = 12;

struct PadArgs {
  PadMode mode;
  std::int32_t rank;     // at least 1
  std::int64_t block;    // bytes at one index of all dimensions
  std::int64_t pattern;  // eight bytes of the constant, repeated
  std::int64_t rows;     // of the destination: the product of all dimensions but the last
  std::int64_t skip;     // bytes of the source before its first used element
  std::int64_t in[kMaxPadDims];
  std::int64_t out[kMaxPadDims];
  std::int64_t begin[kMaxPadDims];   // padding before the first element; negative: elements skipped
  std::int64_t stride[kMaxPadDims];  // bytes, of the source
};

struct FillArgs {
  std::int64_t bytes;
  std::int64_t pattern;
};

struct TriluArgs {
  std::int64_t matrices, rows, columns;
  std::int64_t element;   // bytes
  std::int64_t diagonal;  // element (r, c) is on it if c = r + diagonal
  std::int64_t upper;     // 1: keeps the diagonal and the elements right of it; 0: those on and left of it
};

}  // namespace engine
