// A transposed convolution as ordinary convolutions of stride 1: see conv_transpose.cpp.
#pragma once

#include <vector>

#include "kernels/conv.hpp"

namespace engine {

// The convolution that computes the outputs of one residue modulo the strides. Weights are elements of
// [in, out / groups, kernel height, kernel width].
struct ResiduePart {
  ConvShape shape;                      // it may have no outputs, and no taps
  std::int64_t first_output;            // a pixel of the whole result; the others are a stride away
  std::int64_t first_weight;            // of channel 0
  std::int64_t row_stride, col_stride;  // between the weights of its taps
};

// Throws PlanError for strides above 64, which would need too many phases.
std::vector<ResiduePart> residue_parts(const ConvShape& shape);

// Sets the strides of weights [in, out / groups, kernel height, kernel width], and of outputs that are a stride of
// `whole` apart.
void set_transposed_strides(const ConvShape& whole, ConvArgs& args);
// The same, and where the weights and the outputs of a part are. `args` are those of `part.shape`.
void set_residue(const ConvShape& whole, const ResiduePart& part, ConvArgs& args);

}  // namespace engine
