// Scalar kernels on plain layouts, accumulated in double, as a reference for the tests of kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/conv.hpp"

namespace engine::reference {

// One value after the epilogue.
double activate(const EpilogueArgs& epilogue, double x);
double finish(const EpilogueArgs& epilogue, double accumulator, const float* scale, const float* bias,
              const float* residual);

// x: [N, C, H, W], w: [M, C / groups, KH, KW], scale, bias: [M] or null, residual: as y or null; y: [N, M, OH, OW].
void conv(const ConvShape& shape, const EpilogueArgs& epilogue, const float* x, const float* w, const float* scale,
          const float* bias, const float* residual, float* y);

// Transposed convolution by its definition, which adds what each input contributes. w: [in, out / groups, KH, KW].
void conv_transpose(const ConvShape& shape, const EpilogueArgs& epilogue, const float* x, const float* w,
                    const float* scale, const float* bias, const float* residual, float* y);

// Plain [N, C, H, W] to and from NCHWc16. Lanes beyond the channels are set to `fill`.
std::vector<float> to_blocked(const std::vector<float>& plain, std::int64_t n, std::int64_t c, std::int64_t hw,
                              float fill);
std::vector<float> from_blocked(const std::vector<float>& blocked, std::int64_t n, std::int64_t c, std::int64_t hw);

}  // namespace engine::reference
