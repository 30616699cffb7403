// Plan-time half of Winograd convolution.
#include "kernels/winograd.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"

namespace engine {
namespace {

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }
std::int64_t points(const WinogradArgs& args) {
  return std::int64_t{args.output_tile + 2} * (args.output_tile + 2);
}

}  // namespace

WinogradArgs make_winograd_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                int output_tile, int vectors, int block_tiles, const TileTraits& traits) {
  WinogradArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  args.output_tile = output_tile;
  vectors = vectors == 0 ? traits.best_vectors : vectors;
  while (vectors > 1 && (vectors - 1) * traits.lanes >= shape.out_channels) --vectors;
  args.tile_channels = vectors * traits.lanes;
  const std::int64_t rest = shape.out_channels % args.tile_channels;
  args.tail_channels =
      rest == 0 ? args.tile_channels : static_cast<std::int32_t>(divide_up(rest, traits.lanes) * traits.lanes);
  args.pixels = traits.max_pixels[vectors];
  args.tiles_h = divide_up(shape.out_h, output_tile);
  args.tiles_w = divide_up(shape.out_w, output_tile);
  args.tiles = shape.batch * args.tiles_h * args.tiles_w;
  args.block_tiles = block_tiles == 0 ? 2 * args.pixels : block_tiles;
  args.x_batch = divide_up(shape.in_channels, 16) * 16 * shape.in_h * shape.in_w;
  args.y_batch = divide_up(shape.out_channels, 16) * 16 * shape.out_h * shape.out_w;
  args.residual_batch = args.y_batch;
  return args;
}

std::int64_t winograd_weight_floats(const WinogradArgs& args) {
  const std::int64_t channel_tiles = divide_up(args.shape.out_channels, args.tile_channels);
  if (channel_tiles == 0) return 0;
  return points(args) * args.shape.in_channels * ((channel_tiles - 1) * args.tile_channels + args.tail_channels);
}

std::int64_t winograd_input_floats(const WinogradArgs& args) {
  return points(args) * winograd_point_stride(divide_up(args.shape.in_channels, 16), args.tiles);
}

std::int64_t winograd_product_floats(const WinogradArgs& args) {
  return points(args) * winograd_point_stride(divide_up(args.shape.out_channels, 16), args.tiles);
}

std::size_t winograd_scratch_bytes(const WinogradArgs& args) {
  const std::int64_t input = winograd_point_stride(divide_up(args.shape.in_channels, 16), args.block_tiles);
  const std::int64_t product = winograd_point_stride(divide_up(args.tile_channels, 16), args.block_tiles);
  return static_cast<std::size_t>(points(args) * (input + product)) * sizeof(float);
}

}  // namespace engine
