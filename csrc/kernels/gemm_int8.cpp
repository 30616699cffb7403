// gemm_int8, gemm_panel_int8: see gemm_tiled.hpp. C must not overlap A or B; no byte beyond column N of a row is
// accessed.
#include <cstring>

#include "kernels/gemm_walk.hpp"
#include "kernels/tile_int8.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Split over tiles of rows.
void gemm_panel_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmInt8Args& args = *static_cast<const GemmInt8Args*>(raw_args);
  if (args.m == 0) return;
  const RowTiles tiles = row_tiles(args.m, args.tiling.pixels);
  const std::uint64_t flip = args.is_a_signed ? 0x8080808080808080u : 0;
  const WorkRange range = split_work(tiles.count, context.worker, context.workers);
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t first = tiles.first_row(t), rows = tiles.rows(t);
    const std::uint8_t* a = static_cast<const std::uint8_t*>(buffers[0]) + first * args.a.row;
    std::uint8_t* to = static_cast<std::uint8_t*>(buffers[args.panel_at]) + first * ((args.k + 15) / 16 * 16);
    const std::int64_t whole = args.k / 16 * 16;
    // Along rows: reads that are far apart would miss the cache.
    for (std::int64_t r = 0; r < rows; ++r, a += args.a.row, to += 16) {
      if (args.has_factors) {
        std::int32_t sum = 0;
        for (std::int64_t k = 0; k < args.k; ++k) sum += a[k] ^ static_cast<std::uint8_t>(flip);
        static_cast<std::int32_t*>(buffers[args.panel_at + 1])[first + r] = sum;
      }
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

void gemm_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmInt8Args& args = *static_cast<const GemmInt8Args*>(raw_args);
  GemmWalk<TileInt8<>> walk = {};
  walk.more.start = static_cast<const std::int32_t*>(buffers[2]);
  walk.scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.has_middle_bias) walk.more.middle_bias = static_cast<const float*>(buffers[operand++]);
  if (args.has_factors) {
    walk.more.factors = static_cast<const std::int32_t*>(buffers[operand]);
    walk.more.pixel_sums = static_cast<const std::int32_t*>(buffers[args.panel_at + 1]);
  }
  walk.more.requantize = &args.requantize;
  walk.more.pairs_fit = args.pairs_fit;
  run_gemm(walk, args, buffers, context);
}

}  // namespace

extern const KernelEntry gemm_int8_kernels[] = {{"gemm_int8", gemm_int8, &tile_int8_traits},
                                                {"gemm_panel_int8", gemm_panel_int8, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
