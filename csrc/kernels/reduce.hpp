// Reductions of a dense tensor over any of its axes.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

constexpr int kReduceDims = 8;

struct ReduceDims {
  std::int32_t rank = 0;
  std::int64_t size[kReduceDims] = {};
  std::int64_t stride[kReduceDims] = {};  // in elements
};

// The map applied to elements and the operation that combines two results; then the final operation.
enum class ReduceMap : std::int32_t { kAdd, kAddAbs, kAddSquare, kMax, kMin, kMultiply, kLogAddExp };
enum class ReduceFinish : std::int32_t { kNone, kDivide, kSquareRoot, kLog };

// The elements of one output are at offsets over `reduced`, relative to an offset over `kept`. The innermost axis is
// either reduced, and then the last of `reduced`; or it is kept, as `columns` adjacent outputs (otherwise 1).
// In two phases, the first one has `parts` outputs for each final output, each over a share of axis `split` of
// `reduced`.
struct ReduceArgs {
  ElementCode type;
  ReduceMap map;
  ReduceFinish finish;
  ReduceDims kept;
  ReduceDims reduced;  // at least 1 dimension
  std::int64_t columns;
  bool has_columns;
  std::int64_t outputs;  // product of `kept`, without parts and columns
  std::int64_t parts;    // output [outputs][parts][columns]
  std::int32_t split;
  std::int64_t count;  // total number of elements for each output, for kDivide
  std::int32_t from, to;
};

// Columns that are processed together.
constexpr std::int64_t kReduceTile = 64;

}  // namespace engine
