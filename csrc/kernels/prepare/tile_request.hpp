// What plan building needs for products by tiles (tile.hpp), and on the tiles of AMX (tile_product.hpp), which the
// operations of bf16 and of 8-bit integers use if the plan's instruction set has them. These operations accept a tiling
// for other kernels, and ignore it.
#pragma once

#include "kernels/gemm.hpp"
#include "kernels/pack_amx.hpp"
#include "kernels/prepare.hpp"

namespace engine {

// The vectors of a tile for so many channels: `vectors`, unless fewer suffice.
std::int32_t needed_vectors(std::int32_t vectors, std::int64_t channels, const TileTraits& traits);

// Divides the channels of a group into tiles of `vectors` vectors.
void set_tile_channels(PackArgs& pack, std::int64_t channels, std::int32_t vectors, const TileTraits& traits);

// The packing of a B [K, N]; the strides are still to be filled in.
PackArgs pack_columns(std::int64_t n, std::int64_t k, std::int32_t vectors, const TileTraits& traits);

// The elements from the first one of a matrix with a layout to its last, inclusive.
template <class Matrix>
std::size_t matrix_elements(const Matrix& matrix, std::int64_t rows, std::int64_t columns) {
  if (rows == 0 || columns == 0) return 0;
  if (matrix.layout == MatrixLayout::kRows)
    return checked_add(checked_product({rows - 1, matrix.row}), static_cast<std::size_t>(columns));
  return checked_add(checked_product({divide_up(columns, 16) - 1, matrix.row}), checked_product({rows, 16}));
}

// The packing of a B [K, N] for AMX whose steps have `depth` values; the strides are still to be filled in.
PackArgs pack_for_tiles(std::int64_t n, std::int64_t k, std::int32_t depth);

// Fills in the strides of a B with rows of `row` values; `transposed`: B is [N, K].
void set_pack_strides(PackArgs& pack, std::int64_t row, bool transposed);

// The rows of A that stay in cache while columns pass, as tile_block: pairs of tiles, or 0 for all.
GemmTiling tiling_for_tiles(std::int64_t m, const PackArgs& pack);

// The bytes of A in blocks of 64 bytes of depth.
std::size_t panel_bytes(std::int64_t m, const PackArgs& pack);

// The phases `panel`, which makes A's blocks, and `product`; both take `args`.
template <class Args>
void add_tile_phases(PreparedStep& step, const StepRequest& request, const std::string& panel,
                     const std::string& product, const Args& args) {
  // Multiplications that take as long as a value of the panel, as a weight, and the least for a worker.
  constexpr double kConvertWork = 64, kReadWork = 64, kMinWork = 2.0e6;
  const auto useful = [](double work) { return static_cast<int>(work < 1e12 ? 1 + work / kMinWork : 1e6); };
  const double m = static_cast<double>(args.m), n = static_cast<double>(args.n), k = static_cast<double>(args.k);
  step.temporaries.push_back(panel_bytes(args.m, args.pack));
  step.phases.push_back(PreparedPhase::of(request.kernels.find(panel), args));
  step.phases.back().max_workers = useful(kConvertWork * m * k);
  step.phases.push_back(PreparedPhase::of(request.kernels.find(product), args));
  step.phases.back().max_workers = useful(m * n * k > kReadWork * n * k ? m * n * k : kReadWork * n * k);
}

}  // namespace engine
