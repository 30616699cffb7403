// Matrix products by tiles that read A in blocks, for any element type. Included by kernel files only.
#pragma once

#include <cstring>

#include "kernels/gemm_tiled.hpp"
#include "kernels/row_tiles.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using simd::kLanes;

// One worker's state for a step. Tile describes the kernels, as in conv_walk.hpp.
template <class Tile>
struct GemmWalk {
  using Call = typename Tile::Call;
  const TiledGemmArgs* args;
  typename Tile::More more;
  const typename Call::ElementType *panel, *b;
  const float *bias, *scale;
  SizedPointer<const char> residual;
  SizedPointer<char> c;
  char* aside;  // [2][pixels][64] values of up to 4 bytes: temporary tiles of C and of the residual
  RowTiles tiles;
  std::int64_t block;         // consecutive row tiles that use the same column tile
  std::int64_t column_tiles;  // of C
  std::int64_t reduction;     // of the packed weights
};

// The elements between rows of a tile, and between its blocks of 16 columns.
struct TileSteps {
  std::int64_t row, block;
};

ENGINE_INLINE void copy_columns(SizedPointer<const char> from, TileSteps from_steps, SizedPointer<char> to,
                                TileSteps to_steps, int rows, std::int64_t columns) {
  const std::int64_t bytes = to.element_bytes;
  const std::int64_t piece = from_steps.block == 16 && to_steps.block == 16 ? columns : 16;
  for (std::int64_t c = 0; c < columns; c += piece) {
    const char* source = (from + c / 16 * from_steps.block).data;
    char* target = (to + c / 16 * to_steps.block).data;
    const std::size_t size = static_cast<std::size_t>(min64(piece, columns - c) * bytes);
    for (int r = 0; r < rows; ++r, source += from_steps.row * bytes, target += to_steps.row * bytes)
      std::memcpy(target, source, size);
  }
}

// The last columns of a row-major C: computes a whole temporary tile and copies its valid columns.
template <class Tile>
void run_partial(const GemmWalk<Tile>& walk, void (*tile)(const typename Tile::Call&),
                 const typename Tile::Call& direct, int pixels, std::int64_t width, std::int64_t valid) {
  typename Tile::Call call = direct;
  const TileSteps steps = {width, 16};
  if (direct.residual.data) {
    const std::int32_t bytes = direct.residual.element_bytes;
    char* residual = walk.aside + walk.args->tiling.pixels * 64 * 4;
    std::memset(residual, 0, static_cast<std::size_t>(pixels * width * bytes));
    copy_columns(direct.residual, {direct.residual_pixel, direct.residual_block}, {residual, bytes}, steps, pixels,
                 valid);
    call.residual.data = residual;
    call.residual_pixel = steps.row;
    call.residual_block = steps.block;
  }
  call.y.data = walk.aside;
  call.y_pixel = steps.row;
  call.y_block = steps.block;
  tile(call);
  copy_columns({walk.aside, direct.y.element_bytes}, steps, direct.y, {direct.y_pixel, direct.y_block}, pixels, valid);
}

// Makes a tile prefetch its part of the next column tile, one part for each row tile of the block.
template <class Tile>
ENGINE_INLINE void ask_for_next(const GemmWalk<Tile>& walk, std::int64_t index, std::int64_t t,
                                typename Tile::Call& call) {
  if (t + 1 >= walk.column_tiles || walk.block < 2) return;
  const PackArgs& pack = walk.args->pack;
  const std::int64_t width = t + 1 == walk.column_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  prefetch_part(call, walk.b + (t + 1) * pack.tile_channels * walk.reduction, width, walk.reduction / Tile::kDepthStep,
                index % walk.block, walk.block);
}

template <class Tile>
void run_tile(const GemmWalk<Tile>& walk, std::int64_t index, std::int64_t t) {
  const TiledGemmArgs& args = *walk.args;
  const PackArgs& pack = args.pack;
  const int pixels = static_cast<int>(walk.tiles.rows(index));
  const std::int64_t row = walk.tiles.first_row(index);
  const std::int64_t width = t == walk.column_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  const std::int64_t column = t * pack.tile_channels, valid = min64(width, args.n - column);
  typename Tile::Call call = {};
  call.x = walk.panel + row * (args.panel_block != 0 ? 16 : (args.k + 15) / 16 * 16);
  call.x_block = args.panel_block != 0 ? args.panel_block : pixels * 16;
  call.w = walk.b + column * walk.reduction;
  call.w_block = 16 * width;
  call.blocks = pack.blocks;
  call.rows = call.cols = 1;
  call.depth = 16;
  call.last_depth = pack.last_depth;
  call.y = walk.c + position(args.c, row, column);
  call.y_block = block_step(args.c);
  call.y_pixel = row_step(args.c);
  call.bias = walk.bias ? walk.bias + column : nullptr;
  call.scale = walk.scale ? walk.scale + column : nullptr;
  if (args.operands.has_residual) {
    call.residual = walk.residual + position(args.residual, row, column);
    call.residual_block = block_step(args.residual);
    call.residual_pixel = row_step(args.residual);
  }
  call.epilogue = &args.epilogue;
  Tile::complete(walk.more, column, row, call);
  ask_for_next(walk, index, t, call);
  const auto tile = Tile::kernel(walk.more, static_cast<int>(width / kLanes), pixels, PixelStep::kBlocked1);
  const bool is_rows = args.c.layout == MatrixLayout::kRows ||
                       (args.operands.has_residual && args.residual.layout == MatrixLayout::kRows);
  if (valid < width && is_rows)
    run_partial(walk, tile, call, pixels, width, valid);
  else
    tile(call);
}

// Runs one worker's share. `more`, `bias` and `scale` of the walk must be set.
//
// The tiles form one sequence, which is divided evenly. Within a block of row tiles, each column tile is used for all
// of them before the next one, so the column tile and the block's part of A stay in cache.
template <class Tile>
void run_gemm(GemmWalk<Tile>& walk, const TiledGemmArgs& args, void* const* buffers, const KernelContext& context) {
  if (args.m * args.n == 0) return;
  using Element = typename Tile::Call::ElementType;
  walk.args = &args;
  walk.panel = static_cast<const Element*>(buffers[args.panel_at]);
  walk.b = static_cast<const Element*>(buffers[1]);
  if (args.operands.has_residual)
    walk.residual = {static_cast<const char*>(buffers[args.c_at - 1]), args.residual.element_bytes};
  walk.c = {static_cast<char*>(buffers[args.c_at]), args.c.element_bytes};
  walk.aside = static_cast<char*>(context.scratch);
  const PackArgs& pack = args.pack;
  const std::int64_t last_depth = (pack.last_depth + Tile::kDepthStep - 1) / Tile::kDepthStep * Tile::kDepthStep;
  walk.reduction = std::int64_t{16} * (pack.blocks - 1) + last_depth;
  walk.column_tiles = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  walk.tiles = row_tiles(args.m, args.tiling.pixels);
  const std::int64_t count = walk.tiles.count, columns = walk.column_tiles;
  walk.block = args.tiling.tile_block > 0 ? min64(args.tiling.tile_block, count) : count;

  const WorkRange range = split_work(count * columns, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t first = at / (walk.block * columns) * walk.block, block = min64(walk.block, count - first);
    const std::int64_t inside = at - first * columns;
    run_tile(walk, first + inside % block, inside / block);
  }
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
