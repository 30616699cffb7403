// gemm_bf16, gemm_panel_bf16: see gemm_tiled.hpp. C must not overlap A or B. Element alignment. A row-major C is not
// accessed beyond column N of a row; a blocked C is written in whole blocks of 16 columns.
#include "kernels/gemm_walk.hpp"
#include "kernels/tile_bf16.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

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
  const RowTiles tiles = row_tiles(args.m, args.tiling.pixels);
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

void gemm_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmBf16Args& args = *static_cast<const GemmBf16Args*>(raw_args);
  GemmWalk<TileBf16> walk = {};
  int operand = 2;
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand]);
  run_gemm(walk, args, buffers, context);
}

}  // namespace

extern const KernelEntry gemm_bf16_kernels[] = {{"gemm_bf16", gemm_bf16, &tile_bf16_traits},
                                                {"gemm_panel_bf16", gemm_panel_bf16, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
