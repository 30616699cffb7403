// depthwise_f32: depthwise convolution on NCHWc16.
//
// Operands: x, w (packed), [bias], [scale], [residual], y; float alignment; y must not overlap x or w; the residual
// may be y. Split over (image, channel block, output row). Kernels with width 3, 5 or 7 and stride 1 or 2 load each
// input pixel once for each kernel row; any other geometry uses a plain loop over taps.
#include "kernels/depthwise_walk.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void depthwise_f32(const void* args, void* const* buffers, const KernelContext& context) {
  run_depthwise<float>(*static_cast<const DepthwiseArgs*>(args), buffers, context);
}

}  // namespace

extern const KernelEntry depthwise_kernels[] = {{"depthwise_f32", depthwise_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
