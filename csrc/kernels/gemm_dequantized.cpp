// gemm_dequantized_f32: products of many rows with blocked weights of 4 or 8 bits (gemm_weights.hpp), which are
// dequantized in parts that stay in cache. dequantized_panel_f32: A in blocks, as a phase before it.
//
// Operands: A, W, [bias], [residual], C, A in blocks. A, C and the residual are dense f32 with float alignment; C may
// be the residual, and must not overlap the others. Split over blocks of rows and groups of columns.
#include <cstring>

#include "kernels/activation.hpp"
#include "kernels/row_tiles.hpp"
#include "kernels/weights_vector.hpp"
#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kVectors = 2;  // of a tile
constexpr int kWidth = kVectors * kLanes;
constexpr int kTilesInGroup = kWeightColumns / kWidth;

ENGINE_INLINE std::int64_t padded(std::int64_t k) {
  return (k + 15) / 16 * 16;
}

void dequantized_panel_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmDequantizedArgs& args = *static_cast<const GemmDequantizedArgs*>(raw_args);
  if (args.m == 0) return;
  const RowTiles tiles = row_tiles(args.m, args.pixels);
  const std::int64_t length = args.format.k;
  const WorkRange range = split_work(tiles.count, context.worker, context.workers);
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t first = tiles.first_row(t), rows = tiles.rows(t);
    const float* a = static_cast<const float*>(buffers[0]) + first * length;
    float* to = static_cast<float*>(buffers[args.panel_at]) + first * padded(length);
    for (std::int64_t k = 0; k < length; k += 16)
      for (std::int64_t r = 0; r < rows; ++r, to += 16)
        std::memcpy(to, a + r * length + k, static_cast<std::size_t>(min64(16, length - k)) * sizeof(float));
  }
}

// Rows [begin, end) of a record, relative to its first one, as f32 [row][kWidth] for each tile, `tile_step` apart.
template <int kBits>
ENGINE_INLINE void dequantize_record(const WeightsFormat& f, const std::uint8_t* record, std::int64_t begin,
                                     std::int64_t end, float* to, std::int64_t tile_step) {
  constexpr int kRows = kRowsInQuad<kBits>;
  for (int c = 0; c < kWeightColumns; c += kLanes) {
    const RecordColumns columns = record_columns(f, record, c);
    float* row = to + c / kWidth * tile_step + c % kWidth;
    std::int64_t at = begin;
    while (at < end) {
      const VecInt quads = load_quads<kBits>(record, at, c);
      if (at % kRows == 0 && at + kRows <= end) {
#pragma GCC unroll 8
        for (int j = 0; j < kRows; ++j) store(row + j * kWidth, dequantized<kBits>(quads, j, columns));
        at += kRows;
        row += kRows * kWidth;
      } else {
        store(row, dequantized<kBits>(quads, static_cast<int>(at % kRows), columns));
        ++at;
        row += kWidth;
      }
    }
  }
}

// Rows [begin, end) of the weights of a group.
void dequantize(const WeightsFormat& f, const std::uint8_t* w, std::int64_t begin, std::int64_t end, float* to) {
  const std::int64_t tile_step = (end - begin) * kWidth;
  for (std::int64_t record = begin / f.block * f.pieces; record < weight_records(f); ++record) {
    const WorkRange range = record_range(f, record);
    if (range.begin >= end) break;
    const std::int64_t first = range.begin > begin ? range.begin : begin, last = min64(range.end, end);
    if (first >= last) continue;
    const std::uint8_t* from = w + record * record_bytes(f);
    float* row = to + (first - begin) * kWidth;
    if (f.bits == 4)
      dequantize_record<4>(f, from, first - range.begin, last - range.begin, row, tile_step);
    else
      dequantize_record<8>(f, from, first - range.begin, last - range.begin, row, tile_step);
  }
}

struct Walk {
  const GemmDequantizedArgs* args;
  const float *panel, *bias, *residual;
  const std::uint8_t* w;
  float* c;
  float* weights;  // [tiles of a group][chunk][kWidth]
  float* aside;    // [pixels][kWidth], a tile of C whose last columns do not exist
  RowTiles tiles;
};

// Adds the residual to a tile of C and activates it.
void finish(const Walk& walk, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns, float* y,
            std::int64_t y_row) {
  const GemmDequantizedArgs& args = *walk.args;
  const bool is_after = args.epilogue.residual_after;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < columns; i += kLanes) {
      float added[kLanes];
      float* at = y + r * y_row + i;
      if (walk.residual) {
        const std::int64_t count = min64(kLanes, columns - i);
        const Vec other = load_partial(walk.residual + (row + r) * args.format.n + column + i, count, zero());
        if (is_after)
          store(added, other);
        else
          store(at, load(at) + other);
      }
      finish_column(args.epilogue, 1, at, kLanes, walk.residual && is_after ? added : nullptr, kLanes);
    }
}

// The product of a tile of rows with rows [begin, end) of the dequantized weights, added to the result of the rows
// before.
void run_tile(const Walk& walk, std::int64_t tile, std::int64_t column, const float* weights, std::int64_t begin,
              std::int64_t end) {
  static const EpilogueArgs kPlain = {};
  const GemmDequantizedArgs& args = *walk.args;
  const std::int64_t n = args.format.n, k = args.format.k, columns = min64(kWidth, n - column);
  const std::int64_t row = walk.tiles.first_row(tile), rows = walk.tiles.rows(tile);
  const bool is_whole = columns == kWidth, is_last = end == k;
  float* c = walk.c + row * n + column;
  float bias[kWidth] = {};
  if (walk.bias)
    for (std::int64_t i = 0; i < columns; ++i) bias[i] = walk.bias[column + i];
  TileCall call = {};
  call.x = walk.panel + row * padded(k) + begin * rows;
  call.x_block = rows * 16;
  call.w = weights;
  call.w_block = 16 * kWidth;
  call.rows = call.cols = 1;
  call.depth = 16;
  // For K = 0: one block of depth zero, so that the epilogue still runs, on zeros.
  call.blocks = static_cast<std::int32_t>(end > begin ? (end - begin + 15) / 16 : 1);
  call.last_depth = static_cast<std::int32_t>(end - begin - 16 * (call.blocks - 1));
  call.epilogue = &kPlain;
  call.y = is_whole ? c : walk.aside;
  call.y_pixel = is_whole ? n : kWidth;
  call.y_block = 16;
  if (begin == 0) {
    call.bias = bias;
  } else {
    if (!is_whole)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < columns; ++i) walk.aside[r * kWidth + i] = c[r * n + i];
    call.residual = call.y;
    call.residual_pixel = call.y_pixel;
    call.residual_block = call.y_block;
  }
  tile_kernel(kVectors, static_cast<int>(rows), PixelStep::kBlocked1)(call);
  if (is_last) finish(walk, row, rows, column, columns, call.y, call.y_pixel);
  if (!is_whole)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < columns; ++i) c[r * n + i] = walk.aside[r * kWidth + i];
}

void run_group(const Walk& walk, std::int64_t group, std::int64_t first_tile, std::int64_t last_tile) {
  const GemmDequantizedArgs& args = *walk.args;
  const WeightsFormat& f = args.format;
  const std::uint8_t* w = walk.w + group * weight_records(f) * record_bytes(f);
  std::int64_t begin = 0;
  do {
    const std::int64_t end = min64(begin + args.chunk, f.k);
    dequantize(f, w, begin, end, walk.weights);
    for (std::int64_t tile = first_tile; tile < last_tile; ++tile)
      for (int part = 0; part < kTilesInGroup; ++part) {
        const std::int64_t column = group * kWeightColumns + part * kWidth;
        if (column < f.n) run_tile(walk, tile, column, walk.weights + part * (end - begin) * kWidth, begin, end);
      }
    begin = end;
  } while (begin < f.k);
}

void gemm_dequantized_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmDequantizedArgs& args = *static_cast<const GemmDequantizedArgs*>(raw_args);
  if (args.m * args.format.n == 0) return;
  Walk walk = {};
  walk.args = &args;
  walk.panel = static_cast<const float*>(buffers[args.panel_at]);
  walk.w = static_cast<const std::uint8_t*>(buffers[1]);
  int operand = 2;
  if (args.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.has_residual) walk.residual = static_cast<const float*>(buffers[operand++]);
  walk.c = static_cast<float*>(buffers[args.c_at]);
  walk.weights = static_cast<float*>(context.scratch);
  walk.aside = walk.weights + args.chunk * kWeightColumns;
  walk.tiles = row_tiles(args.m, args.pixels);
  const std::int64_t groups = weight_groups(args.format);
  const std::int64_t blocks = (walk.tiles.count + args.row_block - 1) / args.row_block;
  const WorkRange range = split_work(blocks * groups, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t first = at / groups * args.row_block;
    run_group(walk, at % groups, first, min64(first + args.row_block, walk.tiles.count));
  }
}

}  // namespace

extern const KernelEntry gemm_dequantized_kernels[] = {{"gemm_dequantized_f32", gemm_dequantized_f32, &tile_traits},
                                                       {"dequantized_panel_f32", dequantized_panel_f32, nullptr},
                                                       {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
