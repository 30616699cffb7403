// gemm_amx_bf16, gemm_amx_int8: the products of gemm_tiled.hpp on tiles of AMX, with weights as pack_amx.hpp describes
// them. gemm_panel_amx_bf16, gemm_panel_amx_int8: the phase that makes A's blocks, which C is computed from:
//
//   panel [steps][M rounded up to 16][64 bytes of depth], depths beyond K zero, rows beyond M undefined
//
// C must not overlap A or B. A row-major C is not accessed beyond column N of a row; a blocked C is written in whole
// blocks of 16 columns, unless there is a row-major residual.
#include <cstring>

#include "kernels/gemm_tiled.hpp"
#include "kernels/tile_product.hpp"
#include "kernels/tile_writer.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE std::int64_t padded_rows(std::int64_t m) {
  return (m + 15) / 16 * 16;
}

TileProduct product_of(const TiledGemmArgs& args, void* const* buffers) {
  TileProduct product = {};
  product.a = static_cast<const char*>(buffers[args.panel_at]);
  product.a_row = tiles::kRowBytes;
  product.b = static_cast<const char*>(buffers[1]);
  product.rows = args.m;
  product.groups = (args.pack.channels + kGroupColumns - 1) / kGroupColumns;
  product.steps = args.pack.blocks;
  product.a_bytes = args.m * args.pack.blocks * tiles::kRowBytes;
  product.block = args.tiling.tile_block;
  return product;
}

// Sixteen adjacent values of A, `valid` of them present, the others zero.
template <class Element>
ENGINE_INLINE void convert_some(const Element* from, std::int64_t valid, Bf16* to) {
  Element padded[16] = {};
  for (std::int64_t i = 0; i < valid; ++i) padded[i] = from[i];
  for (int l = 0; l < 16; l += kLanes) store(to + l, load(padded + l));
}
ENGINE_ALWAYS_INLINE void convert_all(const float* from, Bf16* to) {
  for (int l = 0; l < 16; l += kLanes) store(to + l, load(from + l));
}
ENGINE_ALWAYS_INLINE void convert_all(const Bf16* from, Bf16* to) {
  std::memcpy(to, from, 16 * sizeof(Bf16));
}

// By tiles, so that neither reading nor writing jumps between distant lines.
template <class Element>
void convert_panel(const GemmBf16Args& args, const Element* a, const WorkRange& rows, const FirstWeights& weights,
                   Bf16* panel) {
  const bool is_blocked = args.a.layout == MatrixLayout::kBlocked;
  const std::int64_t step = padded_rows(args.m) * 32, row = is_blocked ? 16 : args.a.row;
  const std::int64_t block = is_blocked ? args.a.row : 16, blocks = 2 * std::int64_t{args.pack.blocks};
  for (std::int64_t first = rows.begin; first < rows.end; first += tiles::kRows) {
    const std::int64_t end = min64(first + tiles::kRows, rows.end);
    weights.ask((first - rows.begin) / tiles::kRows, (rows.end - rows.begin + tiles::kRows - 1) / tiles::kRows);
    for (std::int64_t i = 0; i < blocks; ++i) {
      const Element* from = a + i * block;
      Bf16* to = panel + i / 2 * step + i % 2 * 16;
      const std::int64_t valid = min64(16, args.k - i * 16);
      for (std::int64_t r = first; r < end; ++r)
        if (valid == 16)
          convert_all(from + r * row, to + r * 32);
        else if (valid > 0)
          convert_some(from + r * row, valid, to + r * 32);
        else
          std::memset(to + r * 32, 0, 32);
    }
  }
}

// Split over rows.
void gemm_panel_amx_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmBf16Args& args = *static_cast<const GemmBf16Args*>(raw_args);
  const WorkRange rows = split_work(args.m, context.worker, context.workers);
  Bf16* panel = static_cast<Bf16*>(buffers[args.panel_at]);
  const FirstWeights weights(product_of(args, buffers), context);
  if (args.a.element_bytes == 2)
    convert_panel(args, static_cast<const Bf16*>(buffers[0]), rows, weights, panel);
  else
    convert_panel(args, static_cast<const float*>(buffers[0]), rows, weights, panel);
}

template <class Byte>
ENGINE_INLINE ByteMatrix<Byte> byte_matrix(const SizedMatrix& matrix, void* data) {
  return {static_cast<Byte*>(data), matrix.element_bytes * row_step(matrix), matrix.element_bytes * block_step(matrix)};
}

// The writer has what depends on its type.
template <class Tiles, class Writer>
ENGINE_INLINE void multiply(const TiledGemmArgs& args, Writer& writer, void* const* buffers,
                            const KernelContext& context) {
  if (args.operands.has_residual) writer.residual = byte_matrix<const char>(args.residual, buffers[args.c_at - 1]);
  writer.y = byte_matrix<char>(args.c, buffers[args.c_at]);
  writer.places = {nullptr, args.m, false};
  writer.columns = args.n;
  writer.prepare();
  multiply_tiles<Tiles, true>(product_of(args, buffers), EvenSteps{padded_rows(args.m) * tiles::kRowBytes}, writer,
                              context);
}

void gemm_amx_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmBf16Args& args = *static_cast<const GemmBf16Args*>(raw_args);
  if (args.m * args.n == 0) return;
  MixedWriter writer = {};
  writer.epilogue = &args.epilogue;
  int operand = 2;
  if (args.operands.has_bias) writer.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) writer.scale = static_cast<const float*>(buffers[operand]);
  writer.residual_bytes = args.residual.element_bytes;
  writer.y_bytes = args.c.element_bytes;
  writer.is_whole = args.c.layout == MatrixLayout::kBlocked &&
                    !(args.operands.has_residual && args.residual.layout == MatrixLayout::kRows);
  multiply<Bf16Tiles>(args, writer, buffers, context);
}

// Split over rows. 128 is added to values of i8.
void gemm_panel_amx_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmInt8Args& args = *static_cast<const GemmInt8Args*>(raw_args);
  const WorkRange rows = split_work(args.m, context.worker, context.workers);
  const std::uint64_t flip = args.is_a_signed ? 0x8080808080808080u : 0;
  const std::int64_t step = padded_rows(args.m) * tiles::kRowBytes;
  const std::uint8_t* a = static_cast<const std::uint8_t*>(buffers[0]);
  std::uint8_t* panel = static_cast<std::uint8_t*>(buffers[args.panel_at]);
  const FirstWeights weights(product_of(args, buffers), context);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    weights.ask(r - rows.begin, rows.end - rows.begin);
    for (std::int64_t k = 0; k < args.k; k += tiles::kRowBytes) {
      std::uint64_t values[8] = {};
      std::memcpy(values, a + r * args.a.row + k, static_cast<std::size_t>(min64(tiles::kRowBytes, args.k - k)));
      for (std::uint64_t& value : values) value ^= flip;
      std::memcpy(panel + k / tiles::kRowBytes * step + r * tiles::kRowBytes, values, sizeof values);
    }
  }
}

void gemm_amx_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmInt8Args& args = *static_cast<const GemmInt8Args*>(raw_args);
  if (args.m * args.n == 0) return;
  IntegerWriter writer = {};
  writer.requantize = &args.requantize;
  writer.starts = buffers[2];
  writer.depth = args.k;
  writer.scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  if (args.operands.has_bias) writer.bias = static_cast<const float*>(buffers[operand++]);
  if (args.has_middle_bias) writer.middle_bias = static_cast<const float*>(buffers[operand]);
  multiply<Int8Tiles>(args, writer, buffers, context);
}

}  // namespace

extern const KernelEntry gemm_amx_kernels[] = {{"gemm_amx_bf16", gemm_amx_bf16, nullptr},
                                               {"gemm_panel_amx_bf16", gemm_panel_amx_bf16, nullptr},
                                               {"gemm_amx_int8", gemm_amx_int8, nullptr},
                                               {"gemm_panel_amx_int8", gemm_panel_amx_int8, nullptr},
                                               {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
