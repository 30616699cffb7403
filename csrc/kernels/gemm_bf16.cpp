// gemm_bf16, gemm_panel_bf16: see gemm_bf16.hpp. C must not overlap A or B. Element alignment. A row-major C is not
// accessed beyond column N of a row; a blocked C is written in whole blocks of 16 columns.
#include "kernels/gemm_bf16.hpp"

#include "kernels/tile_bf16.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// Sixteen columns of one row; those beyond `valid` are set to zero.
template <class Element>
ENGINE_INLINE void convert_block(const Element* from, std::int64_t valid, Bf16* to) {
  Element padded[16] = {};
  if (valid < 16) {
    for (std::int64_t i = 0; i < valid; ++i) padded[i] = from[i];
    from = padded;
  }
  for (int l = 0; l < 16; l += kLanes) store(to + l, load(from + l));
}

// The rows of A in tiles whose sizes differ by at most one row.
struct RowTiles {
  std::int64_t count;
  std::int64_t pixels, wide;  // rows in a tile; the first `wide` tiles have one more
  ENGINE_ALWAYS_INLINE std::int64_t first_row(std::int64_t index) const { return index * pixels + min64(index, wide); }
  ENGINE_ALWAYS_INLINE std::int64_t rows(std::int64_t index) const { return pixels + (index < wide); }
};

ENGINE_INLINE RowTiles row_tiles(const GemmBf16Args& args) {
  const std::int64_t count = (args.m + args.tiling.pixels - 1) / args.tiling.pixels;
  return {count, args.m / count, args.m % count};
}

template <class Element>
void convert_tile(const GemmBf16Args& args, const Element* a, std::int64_t first, std::int64_t rows, Bf16* to) {
  const bool is_blocked = args.a.layout == MatrixLayout::kBlocked;
  for (std::int64_t k = 0; k < args.k; k += 16)
    for (std::int64_t r = first; r < first + rows; ++r, to += 16) {
      const Element* from = is_blocked ? a + k / 16 * args.a.row + r * 16 : a + r * args.a.row + k;
      convert_block(from, min64(16, args.k - k), to);
    }
}

// Split over tiles of rows.
void gemm_panel_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmBf16Args& args = *static_cast<const GemmBf16Args*>(raw_args);
  if (args.m == 0) return;
  const RowTiles tiles = row_tiles(args);
  const WorkRange range = split_work(tiles.count, context.worker, context.workers);
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t first = tiles.first_row(t);
    Bf16* panel = static_cast<Bf16*>(buffers[args.panel_at]) + first * ((args.k + 15) / 16 * 16);
    if (args.a.element_bytes == 2)
      convert_tile(args, static_cast<const Bf16*>(buffers[0]), first, tiles.rows(t), panel);
    else
      convert_tile(args, static_cast<const float*>(buffers[0]), first, tiles.rows(t), panel);
  }
}

struct Walk {
  const GemmBf16Args* args;
  const Bf16 *panel, *b;
  const float *bias, *scale;
  EitherPointer<const char> residual;
  EitherPointer<char> c;
  float* aside;            // [2][pixels][64]: temporary tiles of C and of the residual
  std::int64_t reduction;  // of the packed weights
  RowTiles tiles;
  std::int64_t block;  // consecutive row tiles that use the same column tile
};

ENGINE_INLINE std::int64_t position(const MixedMatrix& matrix, std::int64_t row, std::int64_t column) {
  if (matrix.layout == MatrixLayout::kRows) return row * matrix.row + column;
  return column / 16 * matrix.row + row * 16 + column % 16;
}
ENGINE_INLINE std::int64_t row_step(const MixedMatrix& matrix) {
  return matrix.layout == MatrixLayout::kRows ? matrix.row : 16;
}
ENGINE_INLINE std::int64_t block_step(const MixedMatrix& matrix) {
  return matrix.layout == MatrixLayout::kRows ? 16 : matrix.row;
}

ENGINE_INLINE float read_element(EitherPointer<const char> at) {
  return at.element_bytes == 2 ? to_f32(*reinterpret_cast<const Bf16*>(at.data))
                               : *reinterpret_cast<const float*>(at.data);
}

// The last columns of a row-major C: computes a whole temporary tile and copies its valid columns.
void run_partial(const Walk& walk, TileBf16Fn tile, const TileCallBf16& direct, int pixels, std::int64_t width,
                 std::int64_t valid) {
  TileCallBf16 call = direct;
  float* residual = walk.aside + walk.args->tiling.pixels * 64;
  if (direct.residual.data) {
    for (int p = 0; p < pixels; ++p)
      for (std::int64_t i = 0; i < width; ++i)
        residual[p * width + i] =
            i < valid
                ? read_element(direct.residual + (p * direct.residual_pixel + i / 16 * direct.residual_block + i % 16))
                : 0.0f;
    call.residual = {reinterpret_cast<const char*>(residual), 4};
    call.residual_pixel = width;
    call.residual_block = 16;
  }
  call.y = {reinterpret_cast<char*>(walk.aside), 4};
  call.y_pixel = width;
  call.y_block = 16;
  tile(call);
  for (int p = 0; p < pixels; ++p)
    for (std::int64_t i = 0; i < valid; ++i) {
      const EitherPointer<char> to = direct.y + (p * direct.y_pixel + i / 16 * direct.y_block + i % 16);
      const float value = walk.aside[p * width + i];
      if (to.element_bytes == 2)
        *reinterpret_cast<Bf16*>(to.data) = to_bf16(value);
      else
        *reinterpret_cast<float*>(to.data) = value;
    }
}

// Makes a tile prefetch its part of the next column tile, one part for each row tile of the block.
ENGINE_INLINE void ask_for_next(const Walk& walk, std::int64_t index, std::int64_t t, std::int64_t column_tiles,
                                TileCallBf16& call) {
  if (t + 1 >= column_tiles || walk.block < 2) return;
  const PackArgs& pack = walk.args->pack;
  const std::int64_t width = t + 1 == column_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  prefetch_part(call, walk.b + (t + 1) * pack.tile_channels * walk.reduction, width, walk.reduction / 2,
                index % walk.block, walk.block);
}

void run_tile(const Walk& walk, std::int64_t index, std::int64_t t, std::int64_t column_tiles) {
  const GemmBf16Args& args = *walk.args;
  const PackArgs& pack = args.pack;
  const int pixels = static_cast<int>(walk.tiles.rows(index));
  const std::int64_t row = walk.tiles.first_row(index);
  const std::int64_t width = t == column_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  const std::int64_t column = t * pack.tile_channels, valid = min64(width, args.n - column);
  TileCallBf16 call = {};
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
  ask_for_next(walk, index, t, column_tiles, call);
  const TileBf16Fn tile = tile_bf16_kernel(static_cast<int>(width / kLanes), pixels, PixelStep::kBlocked1);
  const bool is_rows = args.c.layout == MatrixLayout::kRows ||
                       (args.operands.has_residual && args.residual.layout == MatrixLayout::kRows);
  if (valid < width && is_rows)
    run_partial(walk, tile, call, pixels, width, valid);
  else
    tile(call);
}

// The tiles form one sequence, which is divided evenly. Within a block of row tiles, each column tile is used for all
// of them before the next one, so the column tile and the block's part of A stay in cache.
void gemm_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmBf16Args& args = *static_cast<const GemmBf16Args*>(raw_args);
  if (args.m * args.n == 0) return;
  Walk walk = {};
  walk.args = &args;
  walk.panel = static_cast<const Bf16*>(buffers[args.panel_at]);
  walk.b = static_cast<const Bf16*>(buffers[1]);
  int operand = 2;
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual)
    walk.residual = {static_cast<const char*>(buffers[operand++]), args.residual.element_bytes};
  walk.c = {static_cast<char*>(buffers[args.c_at]), args.c.element_bytes};
  walk.aside = static_cast<float*>(context.scratch);
  const PackArgs& pack = args.pack;
  walk.reduction = std::int64_t{16} * (pack.blocks - 1) + (pack.last_depth + 1) / 2 * 2;
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

extern const KernelEntry gemm_bf16_kernels[] = {{"gemm_bf16", gemm_bf16, &tile_bf16_traits},
                                                {"gemm_panel_bf16", gemm_panel_bf16, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
