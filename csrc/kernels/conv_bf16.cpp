// conv_blocked_bf16, conv_planar_bf16: the convolutions of conv.cpp with bf16 products.
//
// Operands: x (bf16; of conv_planar_bf16 plain f32, whose rows are rounded to bf16 when they are copied to scratch), w
// (packed bf16), [bias], [scale] (f32), [residual], y (each bf16 or f32). y must not overlap x or w. Sums and
// activation are computed in f32, including the residual; y is rounded once.
#include "kernels/conv_planar_walk.hpp"
#include "kernels/conv_walk.hpp"
#include "kernels/tile_bf16.hpp"

namespace engine::ENGINE_ISA_NS {

extern const KernelEntry conv_bf16_kernels[] = {{"conv_blocked_bf16", conv_blocked<TileBf16>, &tile_bf16_traits},
                                                {"conv_planar_bf16", conv_planar<TileBf16>, &tile_bf16_traits},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
