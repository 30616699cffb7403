// conv_blocked_bf16: direct convolution on bf16 maps in NCHWc16; conv_planar_bf16: from plain f32 to NCHWc16, for
// inputs with few channels. conv.cpp and conv_planar.cpp have the f32 versions.
//
// Operands: x (bf16 or plain f32), w (packed bf16), [bias], [scale] (f32), [residual], y (each bf16 or f32). y must not
// overlap x or w. Sums and activation are computed in f32, including the residual; y is rounded once.
#include "kernels/conv_bf16.hpp"

#include "kernels/conv_walk.hpp"
#include "kernels/tile_bf16.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void conv_blocked_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvBf16Args& args = *static_cast<const ConvBf16Args*>(raw_args);
  ConvWalk<TileBf16> walk = {};
  walk.args = &args.conv;
  const ConvOperands& operands = args.conv.operands;
  int operand = 2;
  walk.x = static_cast<const Bf16*>(buffers[args.conv.x_at]);
  walk.w = static_cast<const Bf16*>(buffers[1]) + args.conv.pack.packed_offset;
  if (operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand++]);
  if (operands.has_residual) walk.residual = {static_cast<const char*>(buffers[operand++]), args.residual_bytes};
  walk.y = {static_cast<char*>(buffers[args.conv.y_at]), args.y_bytes};
  run_conv(walk, context);
}

}  // namespace

extern const KernelEntry conv_bf16_kernels[] = {{"conv_blocked_bf16", conv_blocked_bf16, &tile_bf16_traits},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
