// Winograd convolution F(m x m, 3 x 3), m of 2 or 4, on NCHWc16 (Lavin and Gray, "Fast algorithms for convolutional
// neural networks", 2016): 3x3, stride 1, no dilation.
//
// An output tile of m x m needs (m + 2)^2 products instead of 9 m^2: 2.25 times fewer for m = 2, 4 times for m = 4. The
// costs are rounding errors, about 2 and 10 times the direct kernel's, that are relative to the largest value of the
// tile's input, and not of the output's own window: of a value of 1e6, outputs that do not see it would change in the
// first digit, and an infinity would make them NaN.
//
// So a tile is computed directly, from the weights as they were, if its largest value exceeds `range` times the largest
// one in a window of one of its outputs (among all channels of a group), is not finite, or could make a sum overflow.
// The window then bounds the error:
//
//   |y - exact| <= 2^-24 (ins + 16) A range * largest |x| in the window * sum over channels of max |w| + ins 2^-141
//
// ins + 16 roundings: 3 for each of two transforms along each of two axes, the weights', and those of a sum of
// products. A is the largest amplification: along one axis, the sum over points of |output| |input| |weights|, the
// norms of the rows of the three transforms, is 16, 17, 24 and 48 for the outputs of m = 4, and 8 for those of m = 2,
// so A is 48^2 or 8^2. `range` is 32 or 1024. As in any sum, most roundings cancel: errors are below a hundredth of the
// bound. The last term is that of denormal products.
//
// Windows are judged by less than they see: each contains one of the squares that rows 1, 2 and 3, 4 form with columns
// 1, 2 and 3, 4 of the tile's input (1, 2 only for m = 2).
//
// Several groups of channels may be computed as one, whose weights between different groups are zero: twice as many
// products as necessary, for two, take less time than products of a few channels. Each group is judged by itself.
//
// With P = (m + 2)^2 points, T output tiles and R input channels (of a group):
//   u  [group][channel tile][P][R][tile_channels]   transformed weights, followed by
//      [group][ceil(out / 16)][R][9][16]            the weights as they were, and
//      one float                                    the largest input whose products cannot overflow; negative if the
//                                                   transformed weights are not precise: too large or too small
//   V  [P][ceil(R / 16)][T][16]              transformed input, followed in phases by
//      [ceil(R / 16)][T] peaks               see `winograd_peak_floats`
//   M  [P][ceil(out / 16)][T][16]            products
#pragma once

#include "kernels/conv.hpp"

namespace engine {

struct WinogradArgs {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  std::int32_t output_tile;    // m
  std::int32_t tile_channels;  // as in PackArgs
  std::int32_t lanes;          // of a vector
  std::int32_t pixels;         // maximum number of Winograd tiles in a register tile
  // Groups that are computed apart, each of several groups of the shape, and their channels: whole blocks if there are
  // several. The last may have fewer.
  std::int64_t groups, in_group, out_group;
  bool in_phases;            // how a step runs; nothing else depends on this
  bool by_channels;          // fused: workers divide the channels, and each transforms the input; else the tiles
  std::int32_t block_tiles;  // fused: tiles transformed together, in the worker's scratch
  std::int64_t tiles_h, tiles_w;
  std::int64_t tiles;  // batch * tiles_h * tiles_w
  std::int64_t x_batch, y_batch, residual_batch;
  float range;                        // between the largest values of a tile and of a window
  bool has_merged_groups;             // of the shape, in one of `groups`
  std::int64_t weights_at, limit_at;  // floats before the weights as they were, and before the largest input
};

// Two implementations share packed weights and the operands x, u, [bias], [scale], [residual], y. Fused, in one phase:
// winograd_fused_f32; best if the weights stay in cache for a block of tiles. In three phases, with the temporaries V
// and M after the operands: winograd_input_f32, winograd_gemm_f32, winograd_output_f32. winograd_weights_f32 (w as
// [out, in, 3, 3], u) runs once, at compile time. For bf16 maps (x, residual, y), winograd_fused_bf16,
// winograd_input_bf16 and winograd_output_bf16 are used instead; weights, V, M and all sums stay f32, since bf16 is not
// precise enough.
// `merge`: groups that are computed as one.
WinogradArgs make_winograd_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                int output_tile, int vectors, int block_tiles, std::int64_t merge,
                                const TileTraits& traits);

std::int64_t winograd_weight_floats(const WinogradArgs& args);
std::int64_t winograd_input_floats(const WinogradArgs& args);    // V and peaks, of all tiles
std::int64_t winograd_product_floats(const WinogradArgs& args);  // M, of all tiles
std::size_t winograd_scratch_bytes(const WinogradArgs& args);    // fused

// Floats between points of V or M: an odd number of cache lines, since an even one would map all points to few sets.
static inline std::int64_t winograd_point_stride(std::int64_t blocks, std::int64_t tiles) {
  return (blocks * tiles | 1) * 16;
}

// Floats of a tile's peaks in a block of channels: the largest magnitudes in each square that judges windows, and in
// the rest of its input. Each has 16 values, one for each channel, if channels belong to several groups of the shape;
// otherwise 4, whose largest is meant.
static inline std::int64_t winograd_peak_floats(const WinogradArgs& args) {
  return (args.output_tile * args.output_tile / 4 + 1) * (args.has_merged_groups ? 16 : 4);
}

}  // namespace engine
