#include "kernels/prepare/tile_request.hpp"

#include <algorithm>

namespace engine {
namespace {

constexpr std::int64_t kTileRows = 16;
// Bytes of A: more than the first do not fit the L2 cache beside the weights, and are divided into blocks of about the
// second.
constexpr std::int64_t kCachedPanelBytes = 1200 * 1024;
constexpr std::int64_t kPanelBlockBytes = 768 * 1024;

void set_pack_depth(PackArgs& pack, std::int64_t k, std::int32_t depth) {
  // For K = 0: one block of depth zero, so that the epilogue still runs, on zeros.
  pack.blocks = static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(k, depth)));
  pack.rows = pack.cols = 1;
  pack.depth = depth;
  pack.last_depth = static_cast<std::int32_t>(k - std::int64_t{depth} * (pack.blocks - 1));
}

}  // namespace

std::int32_t needed_vectors(std::int32_t vectors, std::int64_t channels, const TileTraits& traits) {
  while (vectors > 1 && (vectors - 1) * traits.lanes >= channels) --vectors;
  return vectors;
}

void set_tile_channels(PackArgs& pack, std::int64_t channels, std::int32_t vectors, const TileTraits& traits) {
  pack.channels = channels;
  pack.tile_channels = vectors * traits.lanes;
  const std::int64_t rest = channels % pack.tile_channels;
  pack.tail_channels =
      rest == 0 ? pack.tile_channels : static_cast<std::int32_t>(divide_up(rest, traits.lanes) * traits.lanes);
  pack.adjacent = 4 / traits.weight_bytes;
}

PackArgs pack_columns(std::int64_t n, std::int64_t k, std::int32_t vectors, const TileTraits& traits) {
  PackArgs pack = {};
  pack.groups = 1;
  set_tile_channels(pack, n, vectors, traits);
  set_pack_depth(pack, k, 16);
  return pack;
}

PackArgs pack_for_tiles(std::int64_t n, std::int64_t k, std::int32_t depth) {
  PackArgs pack = {};
  pack.groups = 1;
  pack.channels = n;
  pack.tile_channels = pack.tail_channels = kAmxColumns;
  set_pack_depth(pack, k, depth);
  return pack;
}

void set_pack_strides(PackArgs& pack, std::int64_t row, bool transposed) {
  pack.channel_stride = transposed ? row : 1;
  pack.depth_stride = transposed ? 1 : row;
  pack.block_stride = pack.depth_stride * pack.depth;
}

GemmTiling tiling_for_tiles(std::int64_t m, const PackArgs& pack) {
  GemmTiling tiling = {};
  const std::int64_t row_bytes = std::int64_t{pack.blocks} * kAmxStepBytes;
  if (m * row_bytes <= kCachedPanelBytes) return tiling;
  const std::int64_t pairs = divide_up(m, 2 * kTileRows);
  const std::int64_t most = std::max<std::int64_t>(1, kPanelBlockBytes / (2 * kTileRows * row_bytes));
  tiling.tile_block = static_cast<std::int32_t>(divide_up(pairs, divide_up(pairs, most)));
  return tiling;
}

std::size_t panel_bytes(std::int64_t m, const PackArgs& pack) {
  return checked_product({divide_up(m, kTileRows) * kTileRows, pack.blocks, kAmxStepBytes});
}

}  // namespace engine
