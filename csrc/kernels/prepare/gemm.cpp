// Plan-time half of the matrix products.
#include "kernels/gemm.hpp"

#include <algorithm>
#include <limits>

#include "kernels/prepare.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kCachedWeightFloats = 96 * 1024;

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

GemmTiling choose_tiling(const GemmShape& shape, const TileTraits& traits) {
  GemmTiling tiling;
  tiling.vectors = shape.m == 1 ? traits.max_vectors : traits.best_vectors;
  while (tiling.vectors > 1 && (tiling.vectors - 1) * traits.lanes >= shape.n) --tiling.vectors;
  tiling.pixels = traits.max_pixels[tiling.vectors];
  const bool is_cached = shape.n * shape.k <= kCachedWeightFloats && shape.m > shape.n;
  tiling.tile_block = is_cached ? 1 : 0;
  tiling.channel_split = is_cached ? 1 : std::numeric_limits<std::int32_t>::max();
  return tiling;
}

MatrixView dense(MatrixView view, std::int64_t rows, std::int64_t columns) {
  if (view.row == 0) view.row = view.layout == MatrixLayout::kRows ? columns : rows * kBlock;
  return view;
}

}  // namespace

GemmArgs make_gemm_args(const GemmShape& shape, const GemmOperands& operands, const EpilogueArgs& epilogue,
                        const GemmTiling& tiling, bool transposed, std::int64_t b_row, const MatrixView& a,
                        const MatrixView& residual, const MatrixView& c, bool is_b_shared, const TileTraits& traits) {
  GemmArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  args.tiling = tiling.vectors == 0 ? choose_tiling(shape, traits) : tiling;
  args.a = dense(a, shape.m, shape.k);
  args.residual = dense(residual, shape.m, shape.n);
  args.c = dense(c, shape.m, shape.n);

  PackArgs& pack = args.pack;
  pack.groups = 1;
  pack.channels = shape.n;
  pack.tile_channels = args.tiling.vectors * traits.lanes;
  const std::int64_t rest = shape.n % pack.tile_channels;
  pack.tail_channels =
      rest == 0 ? pack.tile_channels : static_cast<std::int32_t>(divide_up(rest, traits.lanes) * traits.lanes);
  // K of zero: one block of no depth, so that the epilogue still runs on zeros.
  pack.blocks = static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(shape.k, kBlock)));
  pack.rows = pack.cols = 1;
  pack.depth = kBlock;
  pack.last_depth = static_cast<std::int32_t>(shape.k - kBlock * (pack.blocks - 1));
  pack.channel_stride = transposed ? b_row : 1;
  pack.depth_stride = transposed ? 1 : b_row;
  pack.block_stride = pack.depth_stride * kBlock;
  args.b_batch = is_b_shared ? 0 : pack_group_floats(pack);
  return args;
}

std::size_t gemm_scratch_bytes(const GemmArgs& args) {
  // Offsets of a tile's rows, and a tile of C where its last columns are not whole vectors.
  const std::size_t offsets = (args.tiling.pixels * sizeof(std::int64_t) + 63) / 64 * 64;
  return offsets + 2 * static_cast<std::size_t>(args.tiling.pixels) * 64 * sizeof(float);
}

}  // namespace engine
