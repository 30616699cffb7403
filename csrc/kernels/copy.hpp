#pragma once

#include "kernels/kernel.hpp"

namespace engine {

struct CopyArgs {
  std::int64_t bytes;
};

}  // namespace engine
