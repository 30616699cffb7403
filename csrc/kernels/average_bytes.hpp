// Average pooling of 8-bit maps in NCHWc16, with exact sums.
#pragma once

#include "kernels/pool.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// y = requantize(scale * (sum - zero_point * positions inside the input) / count), with the count of PoolArgs. A window
// entirely outside the input has the result of zero.
struct AverageBytesArgs {
  PoolArgs pool;
  RequantizeArgs requantize;
  float scale;
  std::int32_t zero_point;  // of x, as u8
  std::int32_t flip;        // 128 for x of i8
};

}  // namespace engine
