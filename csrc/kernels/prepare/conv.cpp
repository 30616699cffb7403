// Plan building for convolutions on NCHWc16. conv_blocked_bf16 also has the attributes
//
//   y_f32 (0), residual_f32 (0): whether that map is f32 instead of bf16
#include "kernels/conv.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kChannelBlock = 16;
// Packed weights of this size fit the L2 cache together with the input rows of a tile.
constexpr std::int64_t kCachedWeightBytes = 384 * 1024;
// The input pixels of several tiles, beside larger weights; and the number of tiles that is enough for all workers.
constexpr std::int64_t kCachedTileBytes = 512 * 1024, kManyTiles = 48;

bool uses_long_tiles(const ConvShape& shape, const ConvTiling& tiling, const TileTraits& traits) {
  return tiling.vectors == 1 && has_long_tiles(traits, tiling.flat ? shape.out_h * shape.out_w : shape.out_w);
}

}  // namespace

ConvTiling choose_conv_tiling(const ConvShape& shape, const TileTraits& traits, std::int32_t vectors) {
  const std::int64_t group_channels = shape.out_channels / shape.groups;
  ConvTiling tiling;
  tiling.vectors = needed_vectors(vectors == 0 ? traits.best_vectors : vectors, group_channels, traits);
  tiling.pixels = traits.max_pixels[tiling.vectors];
  const bool is_dense_across_rows = shape.kernel_h == 1 && shape.kernel_w == 1 && shape.stride_h == 1 &&
                                    shape.stride_w == 1 && shape.pad_top == 0 && shape.pad_left == 0;
  const std::int64_t by_rows = shape.out_h * divide_up(shape.out_w, tiling.pixels);
  const std::int64_t flat = divide_up(shape.out_h * shape.out_w, tiling.pixels);
  tiling.flat = is_dense_across_rows || flat * 10 < by_rows * 9;
  if (uses_long_tiles(shape, tiling, traits)) tiling.pixels = traits.long_pixels;
  const std::int64_t weights =
      shape.out_channels * (shape.in_channels / shape.groups) * shape.kernel_h * shape.kernel_w * traits.weight_bytes;
  tiling.tile_block = tiling.channel_split = 1;
  if (weights <= kCachedWeightBytes) return tiling;
  // Larger weights come from beyond the L2 cache, so more tiles share one pass over them. With few tiles, workers
  // divide the weights, and each reads the whole map; with many, the map, which is larger.
  tiling.tile_block = kConvOffsetSlots;
  if (shape.batch * (tiling.flat ? flat : by_rows) < kManyTiles) {
    tiling.channel_split = std::numeric_limits<std::int32_t>::max();
    return tiling;
  }
  const std::int64_t tile_bytes = shape.in_channels / shape.groups * tiling.pixels * traits.weight_bytes;
  tiling.tile_block =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(kCachedTileBytes / tile_bytes, 1, kConvOffsetSlots));
  return tiling;
}

ConvArgs make_conv_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                        const ConvTiling& tiling, const TileTraits& traits) {
  ConvArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  args.tiling = tiling.vectors == 0 ? choose_conv_tiling(shape, traits) : tiling;
  // The tiling may have been chosen for another shape.
  const std::int32_t most = traits.max_pixels[args.tiling.vectors];
  if (args.tiling.pixels > most && !uses_long_tiles(shape, args.tiling, traits)) args.tiling.pixels = most;

  const std::int64_t in_channels = shape.in_channels / shape.groups;
  const std::int64_t taps = shape.kernel_h * shape.kernel_w;
  PackArgs& pack = args.pack;
  pack.groups = shape.groups;
  set_tile_channels(pack, shape.out_channels / shape.groups, args.tiling.vectors, traits);
  pack.blocks = static_cast<std::int32_t>(divide_up(in_channels, kChannelBlock));
  pack.rows = static_cast<std::int32_t>(shape.kernel_h);
  pack.cols = static_cast<std::int32_t>(shape.kernel_w);
  pack.depth = kChannelBlock;
  pack.last_depth = static_cast<std::int32_t>(in_channels - kChannelBlock * (pack.blocks - 1));
  pack.group_stride = pack.channels * in_channels * taps;
  pack.channel_stride = in_channels * taps;
  pack.block_stride = kChannelBlock * taps;
  pack.row_stride = shape.kernel_w;
  pack.col_stride = 1;
  pack.depth_stride = taps;

  args.x_at = 0;
  args.x_pixel = kChannelBlock;
  args.residual_at = 2 + operands.has_bias + operands.has_scale;
  args.y_at = args.residual_at + operands.has_residual;
  args.y_pixel = kChannelBlock;
  args.y_row = shape.out_w * args.y_pixel;
  args.y_block = shape.out_h * args.y_row;
  args.x_group = divide_up(in_channels, kChannelBlock) * kChannelBlock * shape.in_h * shape.in_w;
  args.channel_group = divide_up(pack.channels, kChannelBlock) * kChannelBlock;
  args.y_group = args.channel_group / kChannelBlock * args.y_block;
  args.y_group_columns = std::max<std::int64_t>(1, shape.groups);
  args.x_batch = shape.groups * args.x_group;
  args.y_batch = args.residual_batch = shape.groups * args.y_group;
  return args;
}

// Blocks of channels of a map of 64x64 pixels, for example, are a multiple of kPeriod apart, and a tile's pixels of all
// blocks compete for the same few sets of an L2 cache. With more than kMaxBlocks, each tile of channels reads most
// pixels from farther away: a convolution from 1024 to 256 channels of 64x64 pixels takes 7.2 instead of 11.3 ms with
// copies, and one from 320 to 320 channels takes as long as without.
void choose_copies(ConvArgs& args) {
  constexpr std::int64_t kPeriod = 64 << 10, kMaxBlocks = 24;
  constexpr std::int64_t kCopiedBytes = 512 << 10;
  constexpr std::int64_t kMinChannelTiles = 3, kMinPixelTiles = 16;
  const ConvShape& s = args.shape;
  const bool is_inside =
      s.pad_top == 0 && s.pad_left == 0 && (s.out_h - 1) * s.stride_h < s.in_h && (s.out_w - 1) * s.stride_w < s.in_w;
  if (s.kernel_h != 1 || s.kernel_w != 1 || !is_inside || args.pack.groups != 1) return;
  const std::int64_t places = kPeriod / std::gcd(kPeriod, s.in_h * s.in_w * 64);
  const bool is_crowded = args.pack.blocks > kMaxBlocks * places;
  const std::int64_t pixel_tiles = s.batch * divide_up(s.out_h * s.out_w, args.tiling.pixels);
  const bool is_reused = divide_up(args.pack.channels, args.pack.tile_channels) >= kMinChannelTiles;
  args.copies = is_crowded && is_reused && pixel_tiles >= kMinPixelTiles;
  if (!args.copies) return;
  const std::int64_t bytes = std::int64_t{args.pack.blocks} * args.tiling.pixels * 64;
  args.tiling.tile_block =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(kCopiedBytes / bytes, 1, kConvOffsetSlots));
  args.tiling.channel_split = 1;
  args.tiling.flat = true;
}

std::size_t conv_scratch_bytes(const ConvArgs& args) {
  const std::int64_t block = args.tiling.tile_block;
  const std::int64_t slots = block > 0 ? std::min(block, kConvOffsetSlots) : kConvOffsetSlots;
  if (args.copies) return checked_product({slots, args.pack.blocks, args.tiling.pixels, 64});
  return static_cast<std::size_t>(slots * args.shape.kernel_h * args.shape.kernel_w * args.tiling.pixels) *
         sizeof(std::int64_t);
}

namespace {

ConvArgs read_conv(const StepRequest& request, const ConvKernels& kernels) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = find_traits(request, kernels);
  const ConvShape shape = read_conv_shape(attributes);
  expect_whole_groups(shape);
  ConvArgs args = make_conv_args(shape, read_conv_operands(attributes), read_epilogue(attributes),
                                 read_conv_tiling(attributes, shape, traits), traits);
  read_map_types(attributes, kernels, args);
  return args;
}

template <const ConvKernels& kernels>
PreparedStep prepare_conv_blocked(const StepRequest& request) {
  ConvArgs args = read_conv(request, kernels);
  if (!kernels.is_bf16) choose_copies(args);
  const ConvShape& s = args.shape;
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, s, args.operands, x_image, steps, args.pack.groups * pack_group_words(args.pack),
                       {kernels.x_bytes, args.y_bytes, args.residual_bytes});
  return one_phase(PreparedPhase::of(request.kernels.find(kernels.conv), args), conv_scratch_bytes(args), conv_work(s));
}

// w as f32 [out, in / groups, kernel height, kernel width] -> packed. The step has the attributes of the convolution.
template <const ConvKernels& kernels>
PreparedStep prepare_pack_conv_blocked(const StepRequest& request) {
  const ConvArgs args = read_conv(request, kernels);
  const ConvShape& s = args.shape;
  return pack_phase(request, kernels.pack, args.pack,
                    checked_product({s.out_channels, s.in_channels / s.groups, s.kernel_h, s.kernel_w, 4}));
}

}  // namespace

extern const OperationEntry conv_operations[] = {{"conv_blocked_f32", prepare_conv_blocked<kBlockedF32>, true},
                                                 {"pack_conv_blocked_f32", prepare_pack_conv_blocked<kBlockedF32>},
                                                 {"conv_blocked_bf16", prepare_conv_blocked<kBlockedBf16>, true},
                                                 {"pack_conv_blocked_bf16", prepare_pack_conv_blocked<kBlockedBf16>},
                                                 {}};

}  // namespace engine
