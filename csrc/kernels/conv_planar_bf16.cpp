// conv_planar_bf16: convolution from plain f32 NCHW to NCHWc16 with bf16 products, for inputs with few channels.
// conv_planar.cpp has the version with f32 products.
//
// Operands: x (plain f32), w (packed bf16), [bias], [scale] (f32), [residual], y (each bf16 or f32). y must not overlap
// x or w. The rows of x are rounded to bf16 when they are copied to scratch.
#include "kernels/conv_bf16.hpp"
#include "kernels/conv_planar_walk.hpp"
#include "kernels/tile_bf16.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void conv_planar_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PlanarConvBf16Args& args = *static_cast<const PlanarConvBf16Args*>(raw_args);
  const ConvOperands& given = args.conv.operands;
  int operand = 2;
  PlanarOperands<TileBf16> operands = {};
  operands.w = static_cast<const Bf16*>(buffers[1]);
  if (given.has_bias) operands.bias = static_cast<const float*>(buffers[operand++]);
  if (given.has_scale) operands.scale = static_cast<const float*>(buffers[operand++]);
  if (given.has_residual) operands.residual = {static_cast<const char*>(buffers[operand++]), args.residual_bytes};
  operands.y = {static_cast<char*>(buffers[operand]), args.y_bytes};
  run_planar(args.conv, operands, static_cast<const float*>(buffers[0]), context);
}

}  // namespace

extern const KernelEntry conv_planar_bf16_kernels[] = {{"conv_planar_bf16", conv_planar_bf16, &tile_bf16_traits},
                                                       {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
