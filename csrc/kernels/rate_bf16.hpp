// Kernels that multiply in registers only. Their traits are a double: multiplications of one repetition.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

struct RateArgs {
  std::int64_t repeats;
};

}  // namespace engine
