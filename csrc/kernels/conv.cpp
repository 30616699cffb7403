// conv_blocked_f32: direct convolution on NCHWc16 with any kernel, stride, dilation, padding; groups of whole blocks;
// output strides are arbitrary, as transposed convolution needs. Kernel rows that lie entirely in the padding are
// skipped; other taps in the padding read zeros. Padding is never stored in a map.
//
// conv_planar_f32: convolution from plain NCHW to NCHWc16, for inputs with few channels. A worker copies the input rows
// of a few output rows into a padded band in its scratch memory, which the convolution reads for each output channel.
// Split over (image, band).
//
// Operands: x, w (packed, pack.hpp), [bias], [scale], [residual], y; float alignment; y must not overlap x or w.
#include "kernels/conv_planar_walk.hpp"
#include "kernels/conv_walk.hpp"

namespace engine::ENGINE_ISA_NS {

extern const KernelEntry conv_kernels[] = {{"conv_blocked_f32", conv_blocked<TileF32>, &tile_traits},
                                           {"conv_planar_f32", conv_planar<TileF32>, &tile_traits},
                                           {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
