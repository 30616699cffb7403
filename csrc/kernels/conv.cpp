// conv_blocked_f32: direct convolution on NCHWc16 with any kernel, stride, dilation, padding; groups of whole blocks;
// output strides are arbitrary, as transposed convolution needs. Kernel rows that lie entirely in the padding are
// skipped; other taps in the padding read zeros. Padding is never stored in a map.
//
// conv_planar_f32: convolution from plain NCHW to NCHWc16, for inputs with few channels. A worker copies the input rows
// of a few output rows into a padded band in its scratch memory, which the convolution reads for each output channel.
// Split over (image, band).
//
// conv_start_f32: the sums of several steps in y start with the residual or zeros. Split over elements.
//
// Operands: x, w (packed, pack.hpp), [bias], [scale], [residual], y; float alignment; y must not overlap x or w.
#include "kernels/conv_planar_walk.hpp"
#include "kernels/conv_walk.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void conv_start_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvStartArgs& args = *static_cast<const ConvStartArgs*>(raw_args);
  float* y = static_cast<float*>(buffers[args.y_at]);
  const float* residual = args.residual_at < 0 ? nullptr : static_cast<const float*>(buffers[args.residual_at]);
  if (residual == y) return;
  const WorkRange range = split_work(args.image, context.worker, context.workers);
  const std::size_t bytes = static_cast<std::size_t>(range.end - range.begin) * sizeof(float);
  for (std::int64_t n = 0; n < args.batch; ++n) {
    float* to = y + n * args.y_batch + range.begin;
    if (residual)
      __builtin_memcpy(to, residual + n * args.residual_batch + range.begin, bytes);
    else
      __builtin_memset(to, 0, bytes);
  }
}

}  // namespace

extern const KernelEntry conv_kernels[] = {{"conv_blocked_f32", conv_blocked<TileF32>, &tile_traits},
                                           {"conv_planar_f32", conv_planar<TileF32>, &tile_traits},
                                           {"conv_start_f32", conv_start_f32, &tile_traits},
                                           {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
