// gemm_f32: products of matrices on tiles, A and C row-major or blocked, B packed.
//
// Operands: A, B, [bias], [scale], [residual], C (gemm.hpp). C must not overlap A or B. Rows of A and C need the
// alignment of a float; nothing beyond column N of a row is touched where C is row-major, while blocked C is written
// in whole blocks of 16 columns.
#include "kernels/gemm.hpp"

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using simd::kLanes;

struct Walk {
  const GemmArgs* args;
  const float *a, *b, *bias, *scale, *residual;
  float* c;
  std::int64_t* offsets;
  float* partial;  // [2][pixels][64]: a tile of C and one of the residual
  std::int64_t tiles, wide;
  int pixels;
};

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// Address of (row, column) for a column that is a multiple of a vector's lanes.
ENGINE_INLINE std::int64_t position(const MatrixView& view, std::int64_t batch, std::int64_t row, std::int64_t column) {
  const std::int64_t at = batch * view.batch;
  if (view.layout == MatrixLayout::kRows) return at + row * view.row + column;
  return at + column / 16 * view.row + row * 16 + column % 16;
}
ENGINE_INLINE std::int64_t row_step(const MatrixView& view) {
  return view.layout == MatrixLayout::kRows ? view.row : 16;
}
ENGINE_INLINE std::int64_t block_step(const MatrixView& view) {
  return view.layout == MatrixLayout::kRows ? 16 : view.row;
}

// The last columns of a row-major C: through a whole tile aside, of which the valid columns are copied.
void run_partial(const Walk& walk, TileFn tile, TileCall call, int pixels, std::int64_t width, std::int64_t valid) {
  const TileCall direct = call;
  float* residual = walk.partial + walk.args->tiling.pixels * 64;
  if (call.residual) {
    for (int p = 0; p < pixels; ++p)
      for (std::int64_t i = 0; i < width; ++i)
        residual[p * width + i] =
            i < valid ? direct.residual[p * direct.residual_pixel + i / 16 * direct.residual_block + i % 16] : 0.0f;
    call.residual = residual;
    call.residual_pixel = width;
    call.residual_block = 16;
  }
  call.y = walk.partial;
  call.y_pixel = width;
  call.y_block = 16;
  tile(call);
  for (int p = 0; p < pixels; ++p)
    for (std::int64_t i = 0; i < valid; ++i)
      direct.y[p * direct.y_pixel + i / 16 * direct.y_block + i % 16] = walk.partial[p * width + i];
}

void run_tile(const Walk& walk, std::int64_t tile, WorkRange columns) {
  const GemmArgs& args = *walk.args;
  const PackArgs& pack = args.pack;
  const std::int64_t batch = tile / walk.tiles, index = tile % walk.tiles;
  const int pixels = walk.pixels + (index < walk.wide);
  const std::int64_t row = index * walk.pixels + min64(index, walk.wide);
  const std::int64_t column_tiles = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  const bool is_blocked = args.a.layout == MatrixLayout::kBlocked;
  const PixelStep step = is_blocked ? PixelStep::kBlocked1 : PixelStep::kIndirect;
  if (!is_blocked)
    for (int p = 0; p < pixels; ++p) walk.offsets[p] = p * args.a.row;

  TileCall call = {};
  call.x = walk.a + position(args.a, batch, row, 0);
  call.x_block = block_step(args.a);
  call.offsets = walk.offsets;
  call.blocks = pack.blocks;
  call.rows = call.cols = 1;
  call.depth = 16;
  call.last_depth = pack.last_depth;
  call.y_block = block_step(args.c);
  call.y_pixel = row_step(args.c);
  call.residual_block = block_step(args.residual);
  call.residual_pixel = row_step(args.residual);
  call.epilogue = &args.epilogue;
  const TileFn full = tile_kernel(pack.tile_channels / kLanes, pixels, step);
  const TileFn tail = tile_kernel(pack.tail_channels / kLanes, pixels, step);
  for (std::int64_t t = columns.begin; t < columns.end; ++t) {
    const bool is_tail = t == column_tiles - 1;
    const std::int64_t width = is_tail ? pack.tail_channels : pack.tile_channels;
    const std::int64_t column = t * pack.tile_channels;
    const std::int64_t valid = min64(width, args.shape.n - column);
    call.w = walk.b + batch * args.b_batch + column * args.shape.k;
    call.w_block = 16 * width;
    call.y = walk.c + position(args.c, batch, row, column);
    call.bias = walk.bias ? walk.bias + column : nullptr;
    call.scale = walk.scale ? walk.scale + column : nullptr;
    call.residual = walk.residual ? walk.residual + position(args.residual, batch, row, column) : nullptr;
    const bool is_partial = valid < width && (args.c.layout == MatrixLayout::kRows ||
                                              (walk.residual && args.residual.layout == MatrixLayout::kRows));
    if (is_partial)
      run_partial(walk, tail, call, pixels, width, valid);
    else
      (is_tail ? tail : full)(call);
  }
}

void gemm_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmArgs& args = *static_cast<const GemmArgs*>(raw_args);
  if (args.shape.batch * args.shape.m == 0 || args.shape.n == 0) return;
  Walk walk = {};
  walk.args = &args;
  int operand = 0;
  walk.a = static_cast<const float*>(buffers[operand++]);
  walk.b = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) walk.residual = static_cast<const float*>(buffers[operand++]);
  walk.c = static_cast<float*>(buffers[operand]);
  walk.offsets = static_cast<std::int64_t*>(context.scratch);
  walk.partial = static_cast<float*>(context.scratch) + (args.tiling.pixels * 8 + 63) / 64 * 16;
  walk.tiles = (args.shape.m + args.tiling.pixels - 1) / args.tiling.pixels;
  walk.pixels = static_cast<int>(args.shape.m / walk.tiles);
  walk.wide = args.shape.m % walk.tiles;

  int channel_split = args.tiling.channel_split < context.workers ? args.tiling.channel_split : context.workers;
  while (context.workers % channel_split != 0) --channel_split;
  const std::int64_t column_tiles = (args.pack.channels + args.pack.tile_channels - 1) / args.pack.tile_channels;
  const WorkRange columns = split_work(column_tiles, context.worker % channel_split, channel_split);
  const WorkRange rows =
      split_work(args.shape.batch * walk.tiles, context.worker / channel_split, context.workers / channel_split);
  // A block of row tiles stays within one matrix of the batch, whose B is then read once for each block.
  for (std::int64_t first = rows.begin; first < rows.end;) {
    const std::int64_t matrix_end = (first / walk.tiles + 1) * walk.tiles;
    const std::int64_t block = args.tiling.tile_block > 0 ? args.tiling.tile_block : walk.tiles;
    const std::int64_t last = min64(min64(first + block, matrix_end), rows.end);
    const std::int64_t column_step = last - first == 1 ? columns.end - columns.begin : 1;
    for (std::int64_t t = columns.begin; t < columns.end; t += column_step)
      for (std::int64_t tile = first; tile < last; ++tile) run_tile(walk, tile, {t, t + column_step});
    first = last;
  }
}

}  // namespace

extern const KernelEntry gemm_kernels[] = {{"gemm_f32", gemm_f32, &tile_traits}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
