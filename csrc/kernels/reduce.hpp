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

// What an element becomes, and how two of these become one; and what the outcome becomes at last.
enum class ReduceMap : std::int32_t { kAdd, kAddAbs, kAddSquare, kMax, kMin, kMultiply, kLogAddExp };
enum class ReduceFinish : std::int32_t { kNone, kDivide, kSquareRoot, kLog };

// The elements of one output are those at offsets over `reduced`, from an offset over `kept`. The innermost axis is
// either reduced, and then the last of `reduced`; or it is kept: `columns`, adjacent outputs (else 1).
// In two phases the first one has `parts` outputs for each final one: of a share of axis `split` of `reduced` each.
struct ReduceArgs {
  ElementCode type;
  ReduceMap map;
  ReduceFinish finish;
  ReduceDims kept;
  ReduceDims reduced;  // at least one
  std::int64_t columns;
  bool has_columns;
  std::int64_t outputs;  // product of `kept`, without parts and columns
  std::int64_t parts;    // output [outputs][parts][columns]
  std::int32_t split;
  std::int64_t count;  // elements that an output is made of in the end, for kDivide
  std::int32_t from, to;
};

// Columns that are done together.
constexpr std::int64_t kReduceTile = 64;

}  // namespace engine
