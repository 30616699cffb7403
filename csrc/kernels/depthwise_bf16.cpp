// depthwise_bf16: depthwise convolution on bf16 maps in NCHWc16, computed in f32.
//
// Operands: x (bf16), w (packed f32, as in depthwise_f32), [bias], [scale] (f32), [residual], y (bf16); element
// alignment; y must not overlap x or w; the residual may be y. Split as in depthwise_f32.
#include "kernels/depthwise_walk.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void depthwise_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  run_depthwise<Bf16>(*static_cast<const DepthwiseArgs*>(raw_args), buffers, context);
}

}  // namespace

extern const KernelEntry depthwise_bf16_kernels[] = {{"depthwise_bf16", depthwise_bf16, nullptr},
                                                     {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
