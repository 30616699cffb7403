// product_int8 and its first phases, product_pack_int8 and product_panel_int8: see product_int8.hpp. C must not overlap
// the inputs.
//
// Tiles multiply A as u8 and B as i8, others with 128 added or subtracted; zero points are subtracted afterwards:
//
//   sum = sum(A * B) - a_zero * sum(column of B) - b_zero * (sum(row of A) - K * a_zero)
#include "kernels/product_int8.hpp"

#include <cstring>

#include "kernels/requantize_vector.hpp"
#include "kernels/row_tiles.hpp"
#include "kernels/tile_int8.hpp"
#include "simd/transpose.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr std::int64_t kDepth = 4;
constexpr std::int64_t kPanel = 16;  // depths of a block of A
constexpr int kMaxWidth = 64, kMaxRows = 16;

struct Temporaries {
  std::int8_t* packed;                  // [b_batches][columns * quads * 4]
  std::int32_t *column_sums, *b_zeros;  // [b_batches][columns], [columns]
  std::uint8_t* panel;                  // [a_batches][M * panel_bytes]
  std::int32_t* row_sums;               // [a_batches][M], minus K * a_zero
  std::int64_t quads, packed_bytes, row_bytes;
};

ENGINE_INLINE Temporaries temporaries(const ProductInt8Args& args, void* const* buffers) {
  Temporaries t;
  t.packed = static_cast<std::int8_t*>(buffers[args.c_at + 1]);
  t.column_sums = static_cast<std::int32_t*>(buffers[args.c_at + 2]);
  t.b_zeros = static_cast<std::int32_t*>(buffers[args.c_at + 3]);
  t.panel = static_cast<std::uint8_t*>(buffers[args.c_at + 4]);
  t.row_sums = static_cast<std::int32_t*>(buffers[args.c_at + 5]);
  t.quads = (args.k + kDepth - 1) / kDepth;
  t.packed_bytes = args.columns * t.quads * kDepth;
  t.row_bytes = (args.k + kPanel - 1) / kPanel * kPanel;
  return t;
}

// Zero points of A as u8, of B as i8.
ENGINE_INLINE std::int32_t a_zero(const ProductInt8Args& args, void* const* buffers, std::int64_t row) {
  const std::uint8_t value = static_cast<const std::uint8_t*>(buffers[2])[args.has_a_zeros ? row : 0];
  return args.is_a_signed ? value ^ 128 : value;
}
ENGINE_INLINE std::int32_t b_zero(const ProductInt8Args& args, void* const* buffers, std::int64_t column) {
  const std::uint8_t value = static_cast<const std::uint8_t*>(buffers[3])[args.has_b_zeros ? column : 0];
  return static_cast<std::int8_t>(args.is_b_signed ? value : value ^ 128);
}

ENGINE_INLINE std::int64_t column_tiles(const PackArgs& pack) {
  return (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
}

// Rows of B [K, N]: four at a time.
void pack_rows(const ProductInt8Args& args, const std::uint8_t* b, std::int64_t width, std::int64_t valid,
               std::uint8_t flip, std::uint8_t* to) {
  alignas(16) std::uint8_t absent[kMaxWidth];
  std::memset(absent, flip, sizeof absent);
  for (std::int64_t k = 0; k < args.k; k += kDepth) {
    const std::uint8_t* row[kDepth];
    for (std::int64_t j = 0; j < kDepth; ++j) row[j] = k + j < args.k ? b + (k + j) * args.n : absent;
    std::int64_t c = 0;
    for (; c + 16 <= valid; c += 16, to += 64) {
      const std::uint8_t* const at[4] = {row[0] + c, row[1] + c, row[2] + c, row[3] + c};
      store_byte_quads(to, at);
      for (int i = 0; i < 64; ++i) to[i] ^= flip;
    }
    for (; c < width; ++c)
      for (std::int64_t j = 0; j < kDepth; ++j) *to++ = c < valid ? row[j][c] ^ flip : 0;
  }
}

// Depths [begin, K) of one row of a transposed B; `to` is the place of its first depths.
void pack_column(const std::uint8_t* row, std::int64_t begin, std::int64_t k_end, std::int64_t width,
                 std::uint32_t flips, std::uint8_t* to) {
  for (std::int64_t k = begin; k < k_end; k += kDepth) {
    std::uint32_t quad = 0;
    if (k + kDepth <= k_end) {
      std::memcpy(&quad, row + k, 4);
      quad ^= flips;
    } else {
      const std::int64_t rest = k_end - k;
      std::memcpy(&quad, row + k, static_cast<std::size_t>(rest));
      quad ^= flips & ((1u << (8 * rest)) - 1);
    }
    std::memcpy(to + k * width, &quad, 4);
  }
}

// Rows of a transposed B [N, K]: squares of four depths in registers, as far as there are whole ones.
void pack_columns(const ProductInt8Args& args, const std::uint8_t* b, std::int64_t width, std::int64_t valid,
                  std::uint8_t flip, std::uint8_t* to) {
  const std::uint32_t flips = 0x01010101u * flip;
  const VecInt flip_quads = static_cast<std::int32_t>(flips) - VecInt{};
  for (std::int64_t c = 0; c < width; c += kLanes) {
    std::int64_t whole = 0;
    if (c + kLanes <= valid)
      for (; whole + kVectorBytes <= args.k; whole += kVectorBytes) {
        VecInt rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) rows[i] = load_byte_quads(b + (c + i) * args.k + whole) ^ flip_quads;
        exchange_halves<VecInt, VecInt, kLanes>(rows);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          store_ints(reinterpret_cast<std::int32_t*>(to + (whole + i * kDepth) * width + c * kDepth), rows[i]);
      }
    for (std::int64_t i = c; i < c + kLanes; ++i) {
      std::uint8_t* const column = to + i * kDepth;
      if (i < valid)
        pack_column(b + i * args.k, whole, args.k, width, flips, column);
      else
        for (std::int64_t k = 0; k < args.k; k += kDepth) std::memset(column + k * width, 0, kDepth);
    }
  }
}

// Split over matrices and column tiles.
void product_pack_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ProductInt8Args& args = *static_cast<const ProductInt8Args*>(raw_args);
  const Temporaries t = temporaries(args, buffers);
  const PackArgs& pack = args.pack;
  const std::int64_t tiles = column_tiles(pack);
  const std::uint8_t flip = args.is_b_signed ? 0 : 128;
  const VecInt ones = 0x01010101 - VecInt{};
  const WorkRange range = split_work(args.b_batches * tiles, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t matrix = item / tiles, tile = item % tiles, first = tile * pack.tile_channels;
    const std::int64_t width = tile == tiles - 1 ? pack.tail_channels : pack.tile_channels;
    const std::int64_t valid = min64(width, args.n - first);
    const std::uint8_t* b = static_cast<const std::uint8_t*>(buffers[1]) + matrix * args.k * args.n;
    std::uint8_t* to = reinterpret_cast<std::uint8_t*>(t.packed) + matrix * t.packed_bytes + first * t.quads * kDepth;
    if (args.is_b_transposed)
      pack_columns(args, b + first * args.k, width, valid, flip, to);
    else
      pack_rows(args, b + first, width, valid, flip, to);
    std::int32_t* sums = t.column_sums + matrix * args.columns + first;
    for (std::int64_t c = 0; c < width; c += kLanes) {
      VecInt sum = {};
      for (std::int64_t q = 0; q < t.quads; ++q)
        sum = dot_bytes(ones, load_byte_quads(to + (q * width + c) * kDepth), sum);
      store_ints(sums + c, sum);
    }
    if (matrix == 0)
      for (std::int64_t c = 0; c < width; ++c) t.b_zeros[first + c] = c < valid ? b_zero(args, buffers, first + c) : 0;
  }
}

// The sum of u8.
std::uint32_t sum_bytes(const std::uint8_t* from, std::int64_t count, std::uint8_t flip) {
  const VecInt ones = 0x01010101 - VecInt{}, flips = static_cast<std::int32_t>(0x01010101u * flip) - VecInt{};
  VecInt sum = {};
  std::int64_t k = 0;
  for (; k + kVectorBytes <= count; k += kVectorBytes) sum = dot_bytes(load_byte_quads(from + k) ^ flips, ones, sum);
  if (k < count) {
    std::uint8_t last[kVectorBytes];
    std::memset(last, flip, sizeof last);
    std::memcpy(last, from + k, static_cast<std::size_t>(count - k));
    sum = dot_bytes(load_byte_quads(last) ^ flips, ones, sum);
  }
  std::uint32_t total = 0;
  for (int l = 0; l < kLanes; ++l) total += static_cast<std::uint32_t>(sum[l]);
  return total;
}

// Split over matrices and row tiles.
void product_panel_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ProductInt8Args& args = *static_cast<const ProductInt8Args*>(raw_args);
  if (args.m == 0) return;
  const Temporaries t = temporaries(args, buffers);
  const RowTiles tiles = row_tiles(args.m, args.tiling.pixels);
  const std::uint8_t flip = args.is_a_signed ? 128 : 0;
  const std::uint64_t flips = 0x0101010101010101u * flip;
  const WorkRange range = split_work(args.a_batches * tiles.count, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t matrix = item / tiles.count, tile = item % tiles.count;
    const std::int64_t first = matrix * args.m + tiles.first_row(tile), rows = tiles.rows(tile);
    const std::uint8_t* a = static_cast<const std::uint8_t*>(buffers[0]) + first * args.k;
    std::uint8_t* to = t.panel + first * t.row_bytes;
    for (std::int64_t k = 0; k < args.k; k += kPanel) {
      const std::size_t count = static_cast<std::size_t>(min64(kPanel, args.k - k));
      for (std::int64_t r = 0; r < rows; ++r, to += kPanel) {
        std::uint64_t values[2] = {0, 0};
        if (count == kPanel)
          std::memcpy(values, a + r * args.k + k, kPanel);
        else
          std::memcpy(values, a + r * args.k + k, count);
        values[0] ^= flips;
        values[1] ^= flips;
        std::memcpy(to, values, kPanel);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::uint32_t zero = static_cast<std::uint32_t>(a_zero(args, buffers, tiles.first_row(tile) + r));
      t.row_sums[first + r] = static_cast<std::int32_t>(sum_bytes(a + r * args.k, args.k, flip) -
                                                        static_cast<std::uint32_t>(args.k) * zero);
    }
  }
}

// The arguments of a tile for sums of i32 that begin with 0.
constexpr RequantizeArgs make_sums() {
  RequantizeArgs sums = {};
  sums.y = ElementCode::kI32;
  return sums;
}
constexpr RequantizeArgs kSums = make_sums();
constexpr std::int32_t kZeros[kMaxWidth] = {};
constexpr float kUnused[kMaxWidth] = {};

struct Tile {
  std::int64_t batch, row, rows, column, width, valid;
};

// Subtracts the zero points from sums [rows][width], and stores the results.
void finish(const ProductInt8Args& args, void* const* buffers, const Temporaries& t, const Tile& tile,
            std::int64_t a_matrix, std::int64_t b_matrix, const std::int32_t* sums) {
  const std::int64_t bytes = element_bytes_of(args.requantize.y);
  const float* scales = args.requantize.y == ElementCode::kI32 ? nullptr : static_cast<const float*>(buffers[4]);
  char* c = static_cast<char*>(buffers[args.c_at]) + ((tile.batch * args.m + tile.row) * args.n + tile.column) * bytes;
  for (std::int64_t v = 0; v < tile.width; v += kLanes) {
    const VecInt columns = load_ints(t.column_sums + b_matrix * args.columns + tile.column + v);
    const VecInt zeros = load_ints(t.b_zeros + tile.column + v);
    const Vec scale = !scales ? zero() : args.has_scales ? load(scales + tile.column + v) : broadcast(scales[0]);
    const std::int64_t valid = min64(kLanes, tile.valid - v);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int32_t row_sum = t.row_sums[a_matrix * args.m + tile.row + r];
      const VecBits sum = (VecBits)load_ints(sums + r * tile.width + v) -
                          (VecBits)columns * static_cast<std::uint32_t>(a_zero(args, buffers, tile.row + r)) -
                          (VecBits)zeros * static_cast<std::uint32_t>(row_sum);
      char* to = c + (r * args.n + v) * bytes;
      alignas(64) char aside[kVectorBytes];
      char* const y = valid == kLanes ? to : aside;
      if (!scales)
        store_ints(reinterpret_cast<std::int32_t*>(y), (VecInt)sum);
      else
        requantize(args.requantize, to_floats((VecInt)sum) * scale, nullptr, y);
      if (valid < kLanes && valid > 0) std::memcpy(to, aside, static_cast<std::size_t>(valid * bytes));
    }
  }
}

// The same for whole vectors of 8-bit results, and one zero point for each matrix.
void finish_codes(const ProductInt8Args& args, void* const* buffers, const Temporaries& t, const Tile& tile,
                  std::int64_t a_matrix, std::int64_t b_matrix, const std::int32_t* sums) {
  const RequantizeArgs& to = args.requantize;
  const Vec low = broadcast(to.low), high = broadcast(to.high);
  const VecInt zero_point = to.zero_point - VecInt{};
  const float* scales = static_cast<const float*>(buffers[4]);
  const std::uint32_t zero = static_cast<std::uint32_t>(a_zero(args, buffers, 0));
  std::uint32_t offset[kMaxRows];
  for (std::int64_t r = 0; r < tile.rows; ++r)
    offset[r] = 0u - static_cast<std::uint32_t>(t.row_sums[a_matrix * args.m + tile.row + r]) *
                         static_cast<std::uint32_t>(b_zero(args, buffers, 0));
  const std::int64_t rows = tile.rows, width = tile.width, n = args.n;
  std::uint8_t* c = static_cast<std::uint8_t*>(buffers[args.c_at]) + (tile.batch * args.m + tile.row) * n + tile.column;
  for (std::int64_t v = 0; v < width; v += kLanes, c += kLanes, sums += kLanes) {
    const VecBits start = (VecBits)load_ints(t.column_sums + b_matrix * args.columns + tile.column + v) * zero;
    const Vec scale = args.has_scales ? load(scales + tile.column + v) : broadcast(scales[0]);
    const std::int32_t* from = sums;
    std::uint8_t* y = c;
    for (std::int64_t r = 0; r < rows; ++r, from += width, y += n) {
      const VecBits sum = (VecBits)load_ints(from) - start + offset[r];
      const Vec value = min(high, max(low, to_floats((VecInt)sum) * scale));
      store_bytes(y, round_to_ints(value) + zero_point);
    }
  }
}

// The tiles in the order of execution. A division takes as long as a part of a tile, so there is none between tiles of
// a matrix.
struct Position {
  std::int64_t batch, column_tile, row_tile, a_matrix, b_matrix;

  ENGINE_ALWAYS_INLINE Position(const ProductInt8Args& args, std::int64_t item, std::int64_t rows, std::int64_t columns)
      : batch(item / rows / columns), column_tile(item / rows % columns), row_tile(item % rows) {
    find_matrices(args);
  }
  ENGINE_ALWAYS_INLINE void advance(const ProductInt8Args& args, std::int64_t rows, std::int64_t columns) {
    if (++row_tile < rows) return;
    row_tile = 0;
    if (++column_tile < columns) return;
    column_tile = 0;
    ++batch;
    find_matrices(args);
  }

 private:
  ENGINE_ALWAYS_INLINE void find_matrices(const ProductInt8Args& args) {
    a_matrix = b_matrix = 0;
    std::int64_t rest = batch;
    for (std::int32_t d = args.batch_rank - 1; d >= 0; --d) {
      a_matrix += rest % args.batch[d] * args.a_step[d];
      b_matrix += rest % args.batch[d] * args.b_step[d];
      rest /= args.batch[d];
    }
  }
};

// Split over matrices, row tiles and column tiles; the tiles of a column are adjacent.
void product_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ProductInt8Args& args = *static_cast<const ProductInt8Args*>(raw_args);
  if (args.m * args.n * args.batches == 0) return;
  const Temporaries t = temporaries(args, buffers);
  const PackArgs& pack = args.pack;
  const RowTiles rows = row_tiles(args.m, args.tiling.pixels);
  const std::int64_t columns = column_tiles(pack);
  std::int32_t* const sums = static_cast<std::int32_t*>(context.scratch);
  const bool has_common_results = element_bytes_of(args.requantize.y) == 1 && !args.has_a_zeros && !args.has_b_zeros &&
                                  args.requantize.epilogue.activation == Activation::kClip;
  const WorkRange range = split_work(args.batches * columns * rows.count, context.worker, context.workers);
  Position at(args, range.begin, rows.count, columns);
  for (std::int64_t item = range.begin; item < range.end; ++item, at.advance(args, rows.count, columns)) {
    Tile tile;
    tile.batch = at.batch;
    tile.row = rows.first_row(at.row_tile);
    tile.rows = rows.rows(at.row_tile);
    tile.column = at.column_tile * pack.tile_channels;
    tile.width = at.column_tile == columns - 1 ? pack.tail_channels : pack.tile_channels;
    tile.valid = min64(tile.width, args.n - tile.column);
    const std::int64_t a_matrix = at.a_matrix, b_matrix = at.b_matrix;
    TileCallInt8 call = {};
    call.x = t.panel + (a_matrix * args.m + tile.row) * t.row_bytes;
    call.x_block = tile.rows * kPanel;
    call.w =
        reinterpret_cast<const std::uint8_t*>(t.packed) + b_matrix * t.packed_bytes + tile.column * t.quads * kDepth;
    call.w_block = 16 * tile.width;
    call.blocks = pack.blocks;
    call.rows = call.cols = 1;
    call.depth = 16;
    call.last_depth = pack.last_depth;
    call.y = {reinterpret_cast<char*>(sums), 4};
    call.y_block = 16;
    call.y_pixel = tile.width;
    call.start = kZeros;
    call.scale = kUnused;
    call.requantize = &kSums;
    tile_int8_kernel(static_cast<int>(tile.width / kLanes), static_cast<int>(tile.rows), PixelStep::kBlocked1,
                     false)(call);
    if (has_common_results && tile.valid == tile.width)
      finish_codes(args, buffers, t, tile, a_matrix, b_matrix, sums);
    else
      finish(args, buffers, t, tile, a_matrix, b_matrix, sums);
  }
}

}  // namespace

extern const KernelEntry product_int8_kernels[] = {{"product_int8", product_int8, &tile_int8_traits},
                                                   {"product_pack_int8", product_pack_int8, nullptr},
                                                   {"product_panel_int8", product_panel_int8, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
