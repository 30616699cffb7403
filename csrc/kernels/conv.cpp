// conv_blocked_f32: direct convolution on NCHWc16 with any kernel, stride, dilation, padding; groups of whole blocks;
// output strides are arbitrary, as transposed convolution needs.
//
// Operands: x, w (packed, pack.hpp), [bias], [scale], [residual], y. y must not overlap x or w. Kernel rows that lie
// entirely in the padding are skipped; other taps in the padding read zeros. Padding is never stored in a map.
#include "kernels/conv_walk.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void conv_blocked_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  ConvWalk<TileF32> walk = {};
  walk.args = static_cast<const ConvArgs*>(raw_args);
  const ConvOperands& operands = walk.args->operands;
  int operand = 2;
  walk.x = static_cast<const float*>(buffers[walk.args->x_at]);
  walk.w = static_cast<const float*>(buffers[1]) + walk.args->pack.packed_offset;
  if (operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand++]);
  if (operands.has_residual) walk.residual = static_cast<const float*>(buffers[operand++]);
  walk.y = static_cast<float*>(buffers[walk.args->y_at]);
  run_conv(walk, context);
}

}  // namespace

extern const KernelEntry conv_kernels[] = {{"conv_blocked_f32", conv_blocked_f32, &tile_traits},
                                           {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
