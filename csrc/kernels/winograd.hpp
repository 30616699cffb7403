// Winograd convolution F(m x m, 3 x 3), m of 2 or 4, on NCHWc16 (Lavin and Gray, "Fast algorithms for convolutional
// neural networks", 2016): 3x3, stride 1.
//
// The outputs of a tile, and the pixels of its input, are as far apart as the dilation: a convolution of dilation d is
// one without on each of the d x d maps of pixels that are d apart. What follows applies to these maps.
//
// An output tile of m x m needs (m + 2)^2 products instead of 9 m^2: 2.25 times fewer for m = 2, 4 times for m = 4. The
// costs are rounding errors, about 2 and 10 times the direct kernel's, that are relative to the largest value of the
// tile's input, and not of the output's own window: a value of 1e6 would change the first digit of outputs that do not
// see it, and an infinity would make them NaN.
//
// So an output is computed directly, from the weights as they were, if the largest value of its tile exceeds `range`
// times the largest one in its window (among all channels of a group), and all outputs of a tile whose largest value is
// not finite, or could make a sum overflow. Outputs that see zeros only are zero; that is exact, and costs nothing. The
// window then bounds the error:
//
//   |y - exact| <= 2^-24 (ins + 16) A range * largest |x| in the window * sum over channels of max |w| + ins 2^-141
//
// ins + 16 counts the roundings: 3 for each of two transforms along each of two axes, the weights', and a sum of
// products'. A is the largest amplification: along one axis, the sum over points of |output| |input| |weights|, the
// norms of the rows of the three transforms, is 16, 17, 24 and 48 for the outputs of m = 4, and 8 for m = 2, so A is
// 48^2 or 8^2. `range` is 32 or 1024. As in any sum, most roundings cancel: errors are below a hundredth of the bound.
// The last term covers denormal products.
//
// Weights are judged, too, when they are packed, since an output at the border meets a part of the taps only: a square
// of 2 x 2 at least, as maps have two rows and columns or more, and paddings are 1 at most. If the sum over channels of
// max |w| exceeds 16 times that over one of the four squares, for any output channel, all tiles are computed directly.
// So the bound, times 16, holds for the largest weights that an output meets. In trained networks, the ratio is about
// 2.
//
// An output channel without a weight of 1e-35 is not judged. Its transformed weights may be denormal numbers, with
// errors of 2^-150; along one axis, the sum over points of |output| |input| is at most 126. So for such a channel, the
// bound has ins 2^-136 times the largest value of the tile as another term; as long as there is one, tiles with values
// beyond 2^20 are computed directly, so that this term is at most ins 2^-116.
//
// Most tiles are judged by less than their windows: each of these contains one of the squares that rows 1, 2 and 3, 4
// form with columns 1, 2 and 3, 4 of the tile's input (1, 2 only for m = 2). If a square's values are too small, or
// zeros, all windows of the tile are judged.
//
// Maps may have zeros, or values of any range, in most of their tiles, so what cannot be transformed must not take
// longer than by a direct kernel. Tiles are judged first, and only those with enough outputs to transform are. The
// windows of other outputs, of any tiles, are collected, and multiplied with the weights as they were in the same
// register tiles.
//
// Several groups of channels may be computed as one, whose weights between different groups are zero: twice as many
// products as necessary, for two, take less time than products of a few channels. Each group is judged by itself. An
// infinity times a weight of zero is NaN, so if windows are not finite, the direct sums of each group are computed
// apart.
//
// With P = (m + 2)^2 points, T output tiles and R input channels (of a group):
//   u  [group][channel tile][P][R][tile_channels]   transformed weights, followed by
//      [group][channel tile][R / 16][9][16][tile_channels]   the weights as they were (less than 16 in the last block
//                                                   of R), and
//      one float                                    the largest input whose products cannot overflow; negative if the
//                                                   transformed weights are not precise: too large, or too different
//   V  [P][ceil(R / 16)][T][16]              transformed input, of tiles with `transformed` outputs; followed in phases
//      [group][T]                            by marks
//   M  [P][ceil(out / 16)][T][16]            products
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// How the outputs of a tile are computed: each that exists has its bit, i * m + j, in one of these.
struct WinogradMarks {
  std::uint16_t direct;       // by a sum of products
  std::uint16_t zero;         // not at all: it sees zeros only
  std::uint16_t transformed;  // by the transforms
};
struct WinogradTile {
  std::int64_t image, h, w;  // of its first output
  WinogradMarks marks;
};

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
  bool in_phases;            // how a step runs: only the scratch depends on this
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
// winograd_fused_f32; best if the weights stay in cache for a block of tiles. In four phases, with the temporaries V
// and M after the operands: winograd_judge_f32, winograd_input_f32, winograd_gemm_f32, winograd_output_f32.
// winograd_weights_f32 (w as [out, in, 3, 3], u) runs once, at compile time. For bf16 maps (x, residual, y),
// winograd_fused_bf16, winograd_judge_bf16, winograd_input_bf16 and winograd_output_bf16 are used instead; weights, V,
// M and all sums stay f32, since bf16 is not precise enough. `merge`: groups that are computed as one.
WinogradArgs make_winograd_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                int output_tile, int vectors, int block_tiles, std::int64_t merge,
                                const TileTraits& traits);

std::int64_t winograd_weight_floats(const WinogradArgs& args);
std::int64_t winograd_input_floats(const WinogradArgs& args);    // V and marks, of all tiles
std::int64_t winograd_product_floats(const WinogradArgs& args);  // M, of all tiles
std::size_t winograd_scratch_bytes(const WinogradArgs& args);    // fused, or of each phase

// Floats between points of V or M: an odd number of cache lines, since an even one would map all points to few sets.
static inline std::int64_t winograd_point_stride(std::int64_t blocks, std::int64_t tiles) {
  return (blocks * tiles | 1) * 16;
}

// Output channels without a weight of this magnitude may have transformed weights that are denormal numbers, and the
// largest values of tiles that are transformed nevertheless.
constexpr double kWinogradTinyWeight = 1e-35, kWinogradTinyInput = 1 << 20;

// Between the sums of an output's largest weights, of all taps and of a square.
constexpr double kWinogradWeightRange = 16.0;

// Tiles that are judged together.
constexpr std::int64_t kWinogradJudged = 32;

// A worker's memory: floats before each part.
struct WinogradScratch {
  std::int64_t windows;  // V of a block of tiles (fused); or [ceil(R / 16)][9][outputs][16], the windows of outputs
  std::int64_t sums;     // M of a block of tiles (fused); or [ceil(tile_channels / 16)][outputs][16]
  std::int64_t own;      // [ceil(out / 16)][outputs][16] sums of one group of the shape, if groups are merged
  std::int64_t peaks;    // [tile][peak][16], for each block of channels if groups are merged: the largest magnitudes in
                         // each square that judges windows, and in the rest of a tile's input
  std::int64_t outputs;  // std::int64_t: 16 * tile + bit, for each output that is summed directly
  std::int64_t tiles;    // WinogradTile
  std::int64_t marks;    // WinogradMarks
  std::int64_t all;
  std::int64_t most_outputs;  // that are summed together
  std::int64_t most_tiles;    // that are transformed together
};
static inline WinogradScratch winograd_scratch(const WinogradArgs& args) {
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  const std::int64_t in_blocks = (args.in_group + 15) / 16, out_blocks = (args.out_group + 15) / 16;
  const std::int64_t tile_blocks = (args.tile_channels + 15) / 16;
  const std::int64_t peaks = kWinogradJudged * (args.output_tile * args.output_tile / 4 + 1) * 16;
  WinogradScratch s = {};
  // In phases: as many windows as a second-level cache holds, and several register tiles of them.
  constexpr std::int64_t kWindowFloats = 64 << 10;
  std::int64_t register_tiles = kWindowFloats / (in_blocks * 9 * 16) / args.pixels;
  register_tiles = register_tiles > 4 ? 4 : register_tiles < 1 ? 1 : register_tiles;
  // Fused: as many as fit into the memory of V.
  s.most_outputs = args.in_phases ? register_tiles * args.pixels : points * args.block_tiles / 9;
  s.most_tiles = args.in_phases ? 64 : args.block_tiles;
  s.sums = args.in_phases ? in_blocks * 9 * s.most_outputs * 16
                          : points * winograd_point_stride(in_blocks, args.block_tiles);
  s.own = s.sums + (args.in_phases ? tile_blocks * s.most_outputs * 16
                                   : points * winograd_point_stride(tile_blocks, args.block_tiles));
  s.peaks = s.own + (args.has_merged_groups ? out_blocks * s.most_outputs * 16 : 0);
  s.outputs = s.peaks + peaks * (args.has_merged_groups ? in_blocks : 1);
  s.tiles = s.outputs + 2 * (s.most_outputs + 16);
  s.marks = s.tiles + 8 * s.most_tiles;
  s.all = s.marks + 2 * kWinogradJudged;
  return s;
}

}  // namespace engine
