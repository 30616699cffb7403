// Pooling of dense maps with up to three axes: maxima and their positions, means, and p-norms.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

enum class WindowPoolOp : std::int32_t { kMax, kMean, kNorm };

struct WindowPoolArgs {
  WindowPoolOp op;
  ElementCode type;  // of a maximum: f32, i8 or u8; else f32
  std::int64_t maps;
  std::int64_t in[3], out[3], kernel[3], stride[3], dilation[3], begin[3], end[3];  // begin, end: padding
  std::int32_t counts_padding;                                                      // of a mean
  std::int32_t has_positions;                                                       // of a maximum: a second output
  std::int32_t column_major;  // the positions count along the last but one axis first
  std::int32_t power;         // of a norm
  std::int64_t line;          // elements of a padded row, for maxima and means of f32 whose windows are usual; else 0
};

}  // namespace engine
