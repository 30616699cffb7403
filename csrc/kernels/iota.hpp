// start + i * step for i = 0, 1, ..., in the type of the numbers; integers wrap.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct IotaArgs {
  ElementCode type;
  std::int64_t count;
  std::int64_t start, step;  // of integers
  double first, delta;       // of real numbers
};

}  // namespace engine
