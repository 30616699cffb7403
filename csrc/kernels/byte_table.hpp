// Table lookup: y[i] = table[x[i]].
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

struct ByteTableArgs {
  std::int64_t count;
};

}  // namespace engine
