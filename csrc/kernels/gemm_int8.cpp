// gemm_int8, gemm_panel_int8: see gemm_int8.hpp. C must not overlap A or B; no byte beyond column N of a row is
// accessed.
#include "kernels/gemm_int8.hpp"

#include <cstring>

#include "kernels/tile_int8.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// The rows of A in tiles whose sizes differ by at most one row.
struct RowTiles {
  std::int64_t count;
  std::int64_t pixels, wide;  // rows in a tile; the first `wide` tiles have one more
  ENGINE_ALWAYS_INLINE std::int64_t first_row(std::int64_t index) const { return index * pixels + min64(index, wide); }
  ENGINE_ALWAYS_INLINE std::int64_t rows(std::int64_t index) const { return pixels + (index < wide); }
};

ENGINE_INLINE RowTiles row_tiles(const GemmInt8Args& args) {
  const std::int64_t count = (args.m + args.tiling.pixels - 1) / args.tiling.pixels;
  return {count, args.m / count, args.m % count};
}

// Split over tiles of rows.
void gemm_panel_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmInt8Args& args = *static_cast<const GemmInt8Args*>(raw_args);
  if (args.m == 0) return;
  const RowTiles tiles = row_tiles(args);
  const std::uint64_t flip = args.is_a_signed ? 0x8080808080808080u : 0;
  const WorkRange range = split_work(tiles.count, context.worker, context.workers);
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t first = tiles.first_row(t), rows = tiles.rows(t);
    const std::uint8_t* a = static_cast<const std::uint8_t*>(buffers[0]) + first * args.a_row;
    std::uint8_t* to = static_cast<std::uint8_t*>(buffers[args.panel_at]) + first * ((args.k + 15) / 16 * 16);
    const std::int64_t whole = args.k / 16 * 16;
    // Along rows: reads that are far apart would miss the cache.
    for (std::int64_t r = 0; r < rows; ++r, a += args.a_row, to += 16) {
      std::uint8_t* block = to;
      std::uint64_t values[2];
      for (std::int64_t k = 0; k < whole; k += 16, block += rows * 16) {
        std::memcpy(values, a + k, 16);
        values[0] ^= flip;
        values[1] ^= flip;
        std::memcpy(block, values, 16);
      }
      if (whole == args.k) continue;
      values[0] = values[1] = 0;
      std::memcpy(values, a + whole, static_cast<std::size_t>(args.k - whole));
      values[0] ^= flip;
      values[1] ^= flip;
      std::memcpy(block, values, 16);
    }
  }
}

struct Walk {
  const GemmInt8Args* args;
  const std::uint8_t *panel, *b;
  const std::int32_t* start;
  const float *scale, *bias, *middle_bias;
  SizedPointer<const char> residual;
  SizedPointer<char> c;
  char* aside;  // [2][pixels][64] values: temporary tiles of C and of the residual
  RowTiles tiles;
  std::int64_t block;  // consecutive row tiles for each column tile
  std::int64_t reduction;
};

// The last columns: computes a whole temporary tile and copies its valid columns.
void run_partial(const Walk& walk, TileInt8Fn tile, const TileCallInt8& direct, int pixels, std::int64_t width,
                 std::int64_t valid) {
  TileCallInt8 call = direct;
  if (direct.residual.data) {
    const std::int64_t bytes = direct.residual.element_bytes;
    char* residual = walk.aside + walk.args->tiling.pixels * 64 * 4;
    std::memset(residual, 0, static_cast<std::size_t>(pixels * width * bytes));
    for (int p = 0; p < pixels; ++p)
      std::memcpy(residual + p * width * bytes, (direct.residual + p * direct.residual_pixel).data,
                  static_cast<std::size_t>(valid * bytes));
    call.residual.data = residual;
    call.residual_pixel = width;
  }
  call.y.data = walk.aside;
  call.y_pixel = width;
  tile(call);
  const std::int64_t bytes = direct.y.element_bytes;
  for (int p = 0; p < pixels; ++p)
    std::memcpy((direct.y + p * direct.y_pixel).data, walk.aside + p * width * bytes,
                static_cast<std::size_t>(valid * bytes));
}

// Makes a tile prefetch its part of the next column tile, one part for each row tile of the block.
ENGINE_INLINE void ask_for_next(const Walk& walk, std::int64_t index, std::int64_t t, std::int64_t column_tiles,
                                TileCallInt8& call) {
  if (t + 1 >= column_tiles || walk.block < 2) return;
  const PackArgs& pack = walk.args->pack;
  const std::int64_t width = t + 1 == column_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  prefetch_part(call, walk.b + (t + 1) * pack.tile_channels * walk.reduction, width, walk.reduction / 4,
                index % walk.block, walk.block);
}

void run_tile(const Walk& walk, std::int64_t index, std::int64_t t, std::int64_t column_tiles) {
  const GemmInt8Args& args = *walk.args;
  const PackArgs& pack = args.pack;
  const int pixels = static_cast<int>(walk.tiles.rows(index));
  const std::int64_t row = walk.tiles.first_row(index);
  const std::int64_t width = t == column_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  const std::int64_t column = t * pack.tile_channels, valid = min64(width, args.n - column);
  TileCallInt8 call = {};
  call.x = walk.panel + row * ((args.k + 15) / 16 * 16);
  call.x_block = pixels * 16;
  call.w = walk.b + column * walk.reduction;
  call.w_block = 16 * width;
  call.blocks = pack.blocks;
  call.rows = call.cols = 1;
  call.depth = 16;
  call.last_depth = pack.last_depth;
  call.y = walk.c + (row * args.c_row + column);
  call.y_block = call.residual_block = 16;
  call.y_pixel = args.c_row;
  call.start = walk.start + column;
  call.scale = walk.scale + column;
  call.bias = walk.bias ? walk.bias + column : nullptr;
  call.middle_bias = walk.middle_bias ? walk.middle_bias + column : nullptr;
  if (args.operands.has_residual) {
    call.residual = walk.residual + (row * args.residual_row + column);
    call.residual_pixel = args.residual_row;
  }
  call.requantize = &args.requantize;
  ask_for_next(walk, index, t, column_tiles, call);
  const TileInt8Fn tile =
      tile_int8_kernel(static_cast<int>(width / kLanes), pixels, PixelStep::kBlocked1, args.pairs_fit);
  if (valid < width)
    run_partial(walk, tile, call, pixels, width, valid);
  else
    tile(call);
}

// The tiles form one sequence, which is divided evenly. Within a block of row tiles, each column tile is used for all
// of them before the next one, so the column tile and the block's part of A stay in cache.
void gemm_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmInt8Args& args = *static_cast<const GemmInt8Args*>(raw_args);
  if (args.m * args.n == 0) return;
  Walk walk = {};
  walk.args = &args;
  walk.panel = static_cast<const std::uint8_t*>(buffers[args.panel_at]);
  walk.b = static_cast<const std::uint8_t*>(buffers[1]);
  walk.start = static_cast<const std::int32_t*>(buffers[2]);
  walk.scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.has_middle_bias) walk.middle_bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual)
    walk.residual = {static_cast<const char*>(buffers[operand++]), element_bytes_of(args.requantize.residual)};
  walk.c = {static_cast<char*>(buffers[args.c_at]), element_bytes_of(args.requantize.y)};
  walk.aside = static_cast<char*>(context.scratch);
  const PackArgs& pack = args.pack;
  walk.reduction = std::int64_t{16} * (pack.blocks - 1) + (pack.last_depth + 3) / 4 * 4;
  const std::int64_t column_tiles = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  walk.tiles = row_tiles(args);
  const std::int64_t count = walk.tiles.count;
  walk.block = args.tiling.tile_block > 0 ? min64(args.tiling.tile_block, count) : count;

  const WorkRange range = split_work(count * column_tiles, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t first = at / (walk.block * column_tiles) * walk.block, block = min64(walk.block, count - first);
    const std::int64_t inside = at - first * column_tiles;
    run_tile(walk, first + inside % block, inside / block, column_tiles);
  }
}

}  // namespace

extern const KernelEntry gemm_int8_kernels[] = {{"gemm_int8", gemm_int8, &tile_int8_traits},
                                                {"gemm_panel_int8", gemm_panel_int8, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
