// Conversion between plain maps [batch, channels, pixels] and blocked ones [batch, channels / 16, pixels, 16].
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

struct LayoutArgs {
  std::int64_t batch;
  std::int64_t channels;
  std::int64_t pixels;
  std::int64_t plain_batch;    // elements between images of the plain map
  std::int64_t blocked_batch;  // the same for the blocked map
};

// Conversion of `count` values from one type to another, in any layout.
struct ConvertArgs {
  std::int64_t count;
};

}  // namespace engine
