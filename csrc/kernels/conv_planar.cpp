// conv_planar_f32: convolution from plain NCHW to NCHWc16, for inputs with few channels.
//
// Operands: x, w (packed), [bias], [scale], [residual], y; float alignment; y must not overlap x or w. A worker copies
// the input rows of a few output rows into a padded band in its scratch memory, which the convolution reads for each
// output channel. Split over (image, band).
#include "kernels/conv_planar_walk.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void conv_planar_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PlanarConvArgs& args = *static_cast<const PlanarConvArgs*>(raw_args);
  int operand = 2;
  PlanarOperands<TileF32> operands = {};
  operands.w = static_cast<const float*>(buffers[1]);
  if (args.operands.has_bias) operands.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) operands.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) operands.residual = static_cast<const float*>(buffers[operand++]);
  operands.y = static_cast<float*>(buffers[operand]);
  run_planar(args, operands, static_cast<const float*>(buffers[0]), context);
}

}  // namespace

extern const KernelEntry conv_planar_kernels[] = {{"conv_planar_f32", conv_planar_f32, &tile_traits},
                                                  {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
