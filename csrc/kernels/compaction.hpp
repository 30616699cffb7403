// Elements that are chosen by their values, or by a mask; their number is a result, too.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxCompactionRank = 16;
constexpr std::int64_t kCompactionChunks = 64;  // at most; each is counted, then written from its place on

// The coordinates of elements that are not zero (ONNX NonZero-13), in row-major order.
struct NonZeroArgs {
  std::int64_t elements, chunks;
  std::int64_t mask;   // an element with any of these bits is not zero; a sign alone does not count
  std::int64_t bytes;  // of an element: 1, 2, 4, 8
  std::int32_t rank;
  std::int64_t dims[kMaxCompactionRank];
};

// The slices of [outer, axis, inner] for which a condition of `conditions` bools holds (ONNX Compress-11).
struct CompressArgs {
  std::int64_t outer, axis, inner;  // inner in bytes
  std::int64_t conditions, chunks;
};

}  // namespace engine
