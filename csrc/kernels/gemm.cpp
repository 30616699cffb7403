// gemm_f32: matrix products by tiles, A and C row-major or blocked, B packed. gemm_columns_f32: by products of rows
// with rows, for few columns, or few rows and a B that is stored transposed; one short column with many rows at once.
// gemm_raw_f32: few rows times an unpacked B. gemm_pack_f32: packs B for the first two, at run time.
//
// Operands: A, B, [bias], [scale], [residual], C, [packed B] (gemm.hpp). C must not overlap A or B. Rows of A and C
// have float alignment. A row-major C is not accessed beyond column N of a row; a blocked C is written in whole blocks
// of 16 columns. NaN and infinities propagate as in the sums of products; sums below the normal range are zero.
#include "kernels/gemm.hpp"

#include <type_traits>

#include "kernels/activation.hpp"
#include "simd/denormals.hpp"
#include "simd/half.hpp"
#include "simd/partial.hpp"
#include "simd/transpose.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Pointers of one matrix of the batch.
struct Matrix {
  const float* a;
  const char* b;
  const float* residual;
  float* c;
};

struct Walk {
  const GemmArgs* args;
  Matrix first;  // at the start of the operands
  const float *bias, *scale;
  float* partial;  // temporary tiles of C and of the residual
  float* widened;  // weights of 16 bits of the tile of columns in use
};

ENGINE_INLINE Walk start(const GemmArgs& args, void* const* buffers) {
  Walk walk = {};
  walk.args = &args;
  int operand = 0;
  walk.first.a = static_cast<const float*>(buffers[operand++]);
  ++operand;
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) walk.first.residual = static_cast<const float*>(buffers[operand++]);
  walk.first.c = static_cast<float*>(buffers[operand]);
  walk.first.b = static_cast<const char*>(buffers[args.b_operand]);
  return walk;
}

Matrix matrix_at(const Walk& walk, std::int64_t index) {
  const GemmArgs& args = *walk.args;
  Matrix matrix = walk.first;
  for (int d = args.shape.rank - 1; d >= 0; --d) {
    const std::int64_t at = index % args.shape.batch[d];
    index /= args.shape.batch[d];
    matrix.a += at * args.a.batch[d];
    matrix.b += at * args.b_batch[d] * weight_bytes(args.b_element);
    matrix.c += at * args.c.batch[d];
    if (matrix.residual) matrix.residual += at * args.residual.batch[d];
  }
  return matrix;
}

ENGINE_INLINE Vec load_first(const float* from, std::int64_t count) {
  return count >= kLanes ? load(from) : load_partial(from, count, zero());
}

// Applies the epilogue to `rows` x `columns` sums, `step` floats between their rows, and stores them.
ENGINE_NOINLINE void finish_sums(const Walk& walk, const Matrix& matrix, std::int64_t row, std::int64_t column,
                                 std::int64_t rows, std::int64_t columns, const float* sums, std::int64_t step) {
  const GemmArgs& args = *walk.args;
  const EpilogueArgs& epilogue = args.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  const bool is_after = matrix.residual && epilogue.residual_after;
  const Vec low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  const Vec high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    const std::int64_t count = min64(kLanes, columns - i);
    const Vec scale = walk.scale ? load_first(walk.scale + column + i, count) : broadcast(1.0f);
    const Vec bias = walk.bias ? load_first(walk.bias + column + i, count) : zero();
    for (std::int64_t r = 0; r < rows; ++r) {
      Vec value = load(sums + r * step + i);
      if (walk.scale)
        value = fma(value, scale, bias);
      else if (walk.bias)
        value += bias;
      Vec residual = zero();
      if (matrix.residual) residual = load_first(matrix.residual + position(args.residual, row + r, column + i), count);
      if (matrix.residual && !is_after) value += residual;
      value = min(high, max(low, value));
      if (!is_clip || is_after) {
        float lanes[kLanes], added[kLanes];
        store(lanes, value);
        store(added, residual);
        finish_column(epilogue, 1, lanes, kLanes, is_after ? added : nullptr, kLanes);
        value = load(lanes);
      }
      float* to = matrix.c + position(args.c, row + r, column + i);
      if (count == kLanes)
        store(to, value);
      else
        store_partial(to, value, count);
    }
  }
}

// Keeps a vector in a register. Compilers would read it from memory again for each multiply-add, which takes as long as
// the multiply-add.
ENGINE_ALWAYS_INLINE void keep([[maybe_unused]] Vec& x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#elif defined(__SSE2__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#endif
}

// The sums of kRows rows of A with one tile of packed columns. With one or two rows, each multiply-add would wait for
// the previous one to the same accumulator, so the reduction is interleaved in kSplit parts.
template <class Weight, int kVectors, int kRows, int kSplit>
void narrow(const float* a, std::int64_t a_row, const char* weights, std::int64_t k, float* sums) {
  constexpr int kWidth = kVectors * kLanes;
  // CPUs prefetch sequential reads, but not far enough ahead of several rows' work.
  constexpr int kAhead = 512;
  const Weight* w = reinterpret_cast<const Weight*>(weights);
  Vec acc[kSplit][kRows][kVectors] = {};
  std::int64_t d = 0;
  for (; d + kSplit <= k; d += kSplit) {
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) {
      Vec weight[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        weight[v] = load(w + (d + s) * kWidth + v * kLanes);
        if (kRows > 1) keep(weight[v]);
        if (kRows > 1) __builtin_prefetch(w + (d + s) * kWidth + v * kLanes + kAhead, 0, 2);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec value = broadcast(a[r * a_row + d + s]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[s][r][v] = fma(value, weight[v], acc[s][r][v]);
      }
    }
  }
  for (; d < k; ++d)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        acc[0][r][v] = fma(broadcast(a[r * a_row + d]), load(w + d * kWidth + v * kLanes), acc[0][r][v]);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec sum = acc[0][r][v];
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) sum += acc[s][r][v];
      store(sums + r * kWidth + v * kLanes, sum);
    }
}

using NarrowFn = void (*)(const float* a, std::int64_t a_row, const char* w, std::int64_t k, float* sums);

// The rows up to which weights of 16 bits are widened in registers; with more, once for all rows.
constexpr std::int64_t kMaxNarrowRows = 8;

template <class Weight, int kVectors>
NarrowFn pick_narrow(std::int64_t rows) {
  constexpr int kSplitOfTwo = kVectors == 1 ? 4 : 2, kSplitOfThree = kVectors == 3 ? 1 : 2;
  static const NarrowFn few[] = {narrow<Weight, kVectors, 1, 4>, narrow<Weight, kVectors, 2, kSplitOfTwo>,
                                 narrow<Weight, kVectors, 3, kSplitOfThree>};
  if (rows < kFewRows) return few[rows - 1];
  if constexpr (!std::is_same_v<Weight, float>) {
    static const NarrowFn more[] = {narrow<Weight, kVectors, 4, 1>, narrow<Weight, kVectors, 5, 1>,
                                    narrow<Weight, kVectors, 6, 1>, narrow<Weight, kVectors, 7, 1>,
                                    narrow<Weight, kVectors, 8, 1>};
    if (rows <= kMaxNarrowRows) return more[rows - kFewRows];
  }
  return nullptr;
}

template <class Weight>
NarrowFn pick_narrow(std::int64_t vectors, std::int64_t rows) {
  switch (vectors) {
    case 1:
      return pick_narrow<Weight, 1>(rows);
    case 2:
      return pick_narrow<Weight, 2>(rows);
    case 3:
      return pick_narrow<Weight, 3>(rows);
  }
  return nullptr;
}

NarrowFn pick_narrow(ElementCode element, std::int64_t vectors, std::int64_t rows) {
  if (element == ElementCode::kBF16) return pick_narrow<Bf16>(vectors, rows);
  if (element == ElementCode::kF16) return pick_narrow<F16>(vectors, rows);
  return pick_narrow<float>(vectors, rows);
}

// The tiles of one product: the order of row tiles and column tiles, and the kernels for them.
struct Tiles {
  std::int64_t rows, columns;  // number of tiles of a matrix
  std::int64_t pixels, wide;   // rows in a tile; the first `wide` tiles have one more
  std::int64_t block;          // consecutive row tiles that use the same column tile
  std::int64_t depth;          // values of K until the next columns follow; at least 1
  TileFn full[2], tail[2];     // indexed by whether the tile has one more row
  NarrowFn narrow_full, narrow_tail;
};

Tiles cut(const GemmArgs& args) {
  Tiles tiles = {};
  const PackArgs& pack = args.pack;
  tiles.rows = (args.shape.m + args.tiling.pixels - 1) / args.tiling.pixels;
  tiles.columns = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  tiles.pixels = args.shape.m / tiles.rows;
  tiles.wide = args.shape.m % tiles.rows;
  tiles.block = args.tiling.tile_block > 0 ? min64(args.tiling.tile_block, tiles.rows) : tiles.rows;
  // The order is the same, and a block takes as long to begin as a tile with a short K.
  if (tiles.columns == 1) tiles.block = tiles.rows;
  const std::int64_t whole = args.shape.k > 0 ? args.shape.k : 1;
  tiles.depth = args.tiling.depth > 0 ? args.tiling.depth : whole;
  const PixelStep step = args.a.layout == MatrixLayout::kBlocked ? PixelStep::kBlocked1 : PixelStep::kRows;
  for (int more = 0; more < 2; ++more) {
    if (more && tiles.wide == 0) break;
    tiles.full[more] = tile_kernel(pack.tile_channels / kLanes, static_cast<int>(tiles.pixels) + more, step);
    tiles.tail[more] = tile_kernel(pack.tail_channels / kLanes, static_cast<int>(tiles.pixels) + more, step);
  }
  if (args.shape.m > 0 && args.a.layout == MatrixLayout::kRows && args.c.layout == MatrixLayout::kRows &&
      args.residual.layout == MatrixLayout::kRows && tiles.rows == 1 && !args.is_repeatable) {
    tiles.narrow_full = pick_narrow(args.b_element, pack.tile_channels / kLanes, args.shape.m);
    if (tiles.narrow_full) {
      tiles.narrow_tail = pick_narrow(args.b_element, pack.tail_channels / kLanes, args.shape.m);
      tiles.depth = whole;
    }
  }
  return tiles;
}

// The first `valid` columns of a row, `block` floats between its blocks of 16, from or to `width` adjacent floats.
ENGINE_INLINE void copy_in(const float* from, std::int64_t block, std::int64_t width, std::int64_t valid, float* to) {
  for (std::int64_t i = 0; i < width; i += kLanes) {
    const std::int64_t count = valid - i;
    const float* at = from + i / 16 * block + i % 16;
    store(to + i, count >= kLanes ? load(at) : count > 0 ? load_partial(at, count, zero()) : zero());
  }
}
ENGINE_INLINE void copy_out(const float* from, std::int64_t valid, float* to, std::int64_t block) {
  for (std::int64_t i = 0; i < valid; i += kLanes) {
    const std::int64_t count = valid - i;
    float* at = to + i / 16 * block + i % 16;
    if (count >= kLanes)
      store(at, load(from + i));
    else
      store_partial(at, load(from + i), count);
  }
}

// The last columns of a row-major C: computes a whole temporary tile and copies its valid columns.
void run_partial(const Walk& walk, TileFn tile, TileCall call, int pixels, std::int64_t width, std::int64_t valid) {
  const TileCall direct = call;
  float* residual = walk.partial + walk.args->tiling.pixels * 64;
  if (call.residual) {
    for (int p = 0; p < pixels; ++p)
      copy_in(direct.residual + p * direct.residual_pixel, direct.residual_block, width, valid, residual + p * width);
    call.residual = residual;
    call.residual_pixel = width;
    call.residual_block = 16;
  }
  if (call.adds_to_y) {
    for (int p = 0; p < pixels; ++p)
      copy_in(direct.y + p * direct.y_pixel, direct.y_block, width, valid, walk.partial + p * width);
  }
  call.y = walk.partial;
  call.y_pixel = width;
  call.y_block = 16;
  tile(call);
  for (int p = 0; p < pixels; ++p)
    copy_out(walk.partial + p * width, valid, direct.y + p * direct.y_pixel, direct.y_block);
}

// Some of the tiles of a matrix: a part of a block of row tiles, whose column tiles follow each other.
struct Section {
  const Walk* walk;
  const Tiles* tiles;
  Matrix matrix;
  std::int64_t first, rows;  // the block
  std::int64_t begin, end;   // of its tiles: column tile * rows + row tile
};

// Values [k, k + depth) of all rows of A and of a tile of columns of B.
struct ColumnPart {
  std::int64_t tile, width;
  std::int64_t k, depth;
  const char* stored;    // the weights
  const float* weights;  // the same in f32
};

ENGINE_INLINE ColumnPart column_part(const Section& section, std::int64_t tile, std::int64_t k) {
  const GemmArgs& args = *section.walk->args;
  const PackArgs& pack = args.pack;
  ColumnPart part = {};
  part.tile = tile;
  part.width = tile == section.tiles->columns - 1 ? pack.tail_channels : pack.tile_channels;
  part.k = k;
  part.depth = min64(section.tiles->depth, args.shape.k - k);
  const std::int64_t at = tile * pack.tile_channels * args.shape.k + k * part.width;
  part.stored = section.matrix.b + at * weight_bytes(args.b_element);
  part.weights = reinterpret_cast<const float*>(part.stored);
  return part;
}

template <class Weight>
void widen(const char* stored, std::int64_t count, float* to) {
  const Weight* from = reinterpret_cast<const Weight*>(stored);
  for (std::int64_t i = 0; i < count; i += kLanes) store(to + i, load(from + i));
}

void widen(const Walk& walk, ColumnPart& part) {
  const ElementCode element = walk.args->b_element;
  if (element == ElementCode::kF32) return;
  (element == ElementCode::kBF16 ? widen<Bf16> : widen<F16>)(part.stored, part.width * part.depth, walk.widened);
  part.weights = walk.widened;
}

// Makes a tile prefetch its part of the next column tile. Otherwise the first tile of its rows would read all of it
// from memory, needing twice the memory bandwidth.
ENGINE_INLINE void ask_for_next(const Section& section, const ColumnPart& part, std::int64_t index, TileCall& call) {
  const Tiles& tiles = *section.tiles;
  if (part.tile + 1 >= tiles.columns) return;
  const ColumnPart next = column_part(section, part.tile + 1, part.k);
  const std::int64_t bytes = weight_bytes(section.walk->args->b_element);
  prefetch_part(call, next.weights, next.width * bytes / 4, next.depth, index, section.rows);
}

// Whether a tile of a single vector, some of whose columns do not exist, may write whole vectors: the rows of C follow
// each other, and the same worker then writes those that the ends of the vectors reach into. Vectors are written in the
// order of the rows, and not read again.
ENGINE_INLINE bool may_spill(const Section& section, const ColumnPart& part) {
  const GemmArgs& args = *section.walk->args;
  const std::int64_t n = args.shape.n;
  return part.width == kLanes && args.c.row == n && section.tiles->pixels * n >= kLanes - n &&
         part.depth == args.shape.k && !section.matrix.residual && args.epilogue.activation == Activation::kClip;
}

void run_tile(const Section& section, const ColumnPart& part, std::int64_t in_block, bool is_followed) {
  const Walk& walk = *section.walk;
  const Tiles& tiles = *section.tiles;
  const Matrix& matrix = section.matrix;
  const GemmArgs& args = *walk.args;
  const std::int64_t index = section.first + in_block;
  const int more = index < tiles.wide;
  const int pixels = static_cast<int>(tiles.pixels) + more;
  const std::int64_t row = index * tiles.pixels + min64(index, tiles.wide);
  const bool is_tail = part.tile == tiles.columns - 1;
  const std::int64_t column = part.tile * args.pack.tile_channels;
  const std::int64_t valid = min64(part.width, args.shape.n - column);
  if (const NarrowFn sum = is_tail ? tiles.narrow_tail : tiles.narrow_full) {
    sum(matrix.a, args.a.row, part.stored, args.shape.k, walk.partial);
    return finish_sums(walk, matrix, 0, column, args.shape.m, valid, walk.partial, part.width);
  }

  static const EpilogueArgs kPlain = {};
  const bool is_first = part.k == 0, is_last = part.k + part.depth == args.shape.k;
  TileCall call = {};
  call.x = matrix.a + position(args.a, row, part.k);
  call.x_pixel = args.a.row;
  call.x_block = block_step(args.a);
  call.w = part.weights;
  call.w_block = 16 * part.width;
  // For K = 0: one block of depth zero, so that the epilogue still runs, on zeros.
  call.blocks = static_cast<std::int32_t>(part.depth > 16 ? (part.depth + 15) / 16 : 1);
  call.rows = call.cols = 1;
  call.depth = 16;
  call.last_depth = static_cast<std::int32_t>(part.depth - 16 * (call.blocks - 1));
  call.y = matrix.c + position(args.c, row, column);
  call.y_block = block_step(args.c);
  call.y_pixel = row_step(args.c);
  call.adds_to_y = !is_first;
  call.bias = walk.bias && (walk.scale ? is_last : is_first) ? walk.bias + column : nullptr;
  call.scale = walk.scale && is_last ? walk.scale + column : nullptr;
  call.residual = matrix.residual && is_last ? matrix.residual + position(args.residual, row, column) : nullptr;
  call.residual_block = block_step(args.residual);
  call.residual_pixel = row_step(args.residual);
  call.epilogue = is_last ? &args.epilogue : &kPlain;
  ask_for_next(section, part, in_block, call);
  const TileFn tile = (is_tail ? tiles.tail : tiles.full)[more];
  const bool is_partial = valid < part.width && (args.c.layout == MatrixLayout::kRows ||
                                                 (matrix.residual && args.residual.layout == MatrixLayout::kRows));
  if (is_partial && !(is_followed && may_spill(section, part)))
    run_partial(walk, tile, call, pixels, part.width, valid);
  else
    tile(call);
}

// Each column tile is used for all rows of the block before the next one, so the column tile and the block's part of A
// stay in cache.
void run_section(const Section& section) {
  const std::int64_t k = section.walk->args->shape.k;
  std::int64_t from = 0;
  do {
    for (std::int64_t at = section.begin; at < section.end;) {
      ColumnPart part = column_part(section, at / section.rows, from);
      if (!section.tiles->narrow_full) widen(*section.walk, part);
      const std::int64_t column_end = min64(section.end, (part.tile + 1) * section.rows);
      for (; at < column_end; ++at) run_tile(section, part, at % section.rows, at + 1 < section.end);
    }
    from += section.tiles->depth;
  } while (from < k);
}

// The tiles of all matrices form one sequence, which is divided evenly.
void gemm_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmArgs& args = *static_cast<const GemmArgs*>(raw_args);
  const std::int64_t matrices = gemm_matrices(args.shape);
  if (matrices * args.shape.m * args.shape.n == 0) return;
  const NoDenormals guard;
  Walk walk = start(args, buffers);
  walk.partial = static_cast<float*>(context.scratch);
  walk.widened = walk.partial + gemm_partial_floats(args.tiling);

  const Tiles tiles = cut(args);
  const std::int64_t in_matrix = tiles.rows * tiles.columns;
  const WorkRange range = split_work(matrices * in_matrix, context.worker, context.workers);
  std::int64_t at = range.begin;
  while (at < range.end) {
    Section section = {};
    section.walk = &walk;
    section.tiles = &tiles;
    section.matrix = matrix_at(walk, at / in_matrix);
    const std::int64_t matrix_begin = at / in_matrix * in_matrix, inside = at - matrix_begin;
    section.first = inside / (tiles.block * tiles.columns) * tiles.block;
    section.rows = min64(tiles.block, tiles.rows - section.first);
    const std::int64_t block_begin = matrix_begin + section.first * tiles.columns;
    section.begin = at - block_begin;
    section.end = min64(range.end - block_begin, section.rows * tiles.columns);
    run_section(section);
    at = block_begin + section.end;
  }
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kDotRows = 4;
#else
constexpr int kDotRows = 2;
#endif
constexpr int kDotColumns = 4;
constexpr int kDotChunk = 64;  // columns that are stored together

// Swaps lanes that are kStep apart.
template <int kStep>
ENGINE_INLINE Vec swapped(Vec x) {
  VecInt other{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) other[i] = i ^ kStep;
  return ENGINE_SHUFFLE(x, other);
}

// The sum of each of four vectors; they are halved together, so that all lanes are used.
ENGINE_INLINE void reduce_four(Vec a, Vec b, Vec c, Vec d, float* sums) {
  VecInt low{}, high{}, near{}, far{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    constexpr int kHalf = kLanes / 2, kQuarter = kLanes / 4;
    low[i] = i < kHalf ? i : kLanes + i - kHalf;  // the first halves of two vectors, then the second halves
    high[i] = low[i] + kHalf;
    near[i] = i / kHalf * kLanes + i % kHalf / kQuarter * kHalf + i % kQuarter;  // the same within their halves
    far[i] = near[i] + kQuarter;
  }
  const Vec ab = ENGINE_SHUFFLE(a, b, low) + ENGINE_SHUFFLE(a, b, high);
  const Vec cd = ENGINE_SHUFFLE(c, d, low) + ENGINE_SHUFFLE(c, d, high);
  Vec all = ENGINE_SHUFFLE(ab, cd, near) + ENGINE_SHUFFLE(ab, cd, far);
  if constexpr (kLanes >= 16) all += swapped<2>(all);
  if constexpr (kLanes >= 8) all += swapped<1>(all);
  float lanes[kLanes];
  store(lanes, all);
  for (int i = 0; i < 4; ++i) sums[i] = lanes[i * (kLanes / 4)];
}

// sums[r * kDotChunk + c] = row r of `a` times row c of `b`.
template <int kRows, int kColumns>
void dots(const float* a, std::int64_t a_row, const float* b, std::int64_t b_row, std::int64_t k, float* sums) {
  constexpr int kSplit = kRows * kColumns >= 6 ? 1 : kRows * kColumns >= 3 ? 2 : 4;
  Vec acc[kSplit][kRows][kColumns] = {};
  std::int64_t d = 0;
  for (; d + kSplit * kLanes <= k; d += kSplit * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) {
      Vec values[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) values[r] = load(a + r * a_row + d + s * kLanes);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        const Vec column = load(b + c * b_row + d + s * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) acc[s][r][c] = fma(values[r], column, acc[s][r][c]);
      }
    }
  }
  for (; d < k; d += kLanes) {  // at most kSplit - 1 vectors, and a part of one
    const std::int64_t count = min64(kLanes, k - d);
    Vec values[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) values[r] = load_partial(a + r * a_row + d, count, zero());
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const Vec column = load_partial(b + c * b_row + d, count, zero());
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[0][r][c] = fma(values[r], column, acc[0][r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    Vec totals[4] = {};
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      totals[c] = acc[0][r][c];
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) totals[c] += acc[s][r][c];
    }
    reduce_four(totals[0], totals[1], totals[2], totals[3], sums + r * kDotChunk);
  }
}

using DotsFn = void (*)(const float* a, std::int64_t a_row, const float* b, std::int64_t b_row, std::int64_t k,
                        float* sums);

template <int kRows>
DotsFn pick_dots(std::int64_t columns) {
  static const DotsFn table[] = {dots<kRows, 1>, dots<kRows, 2>, dots<kRows, 3>, dots<kRows, 4>};
  return table[columns - 1];
}

DotsFn pick_dots(std::int64_t rows, std::int64_t columns) {
  switch (rows) {
    case 1:
      return pick_dots<1>(columns);
    case 2:
      return pick_dots<2>(columns);
#if defined(__AVX512F__) || defined(__aarch64__)
    case 3:
      return pick_dots<3>(columns);
    case 4:
      return pick_dots<4>(columns);
#endif
  }
  return nullptr;
}

// The length up to which a single column is multiplied by one vector of rows at a time; longer rows are far apart.
constexpr std::int64_t kShortColumn = 64;

// The sums of rows [row, row + count), at most kLanes, of a product with one short column, one per lane.
Vec column_sums(const GemmArgs& args, const Matrix& matrix, std::int64_t row, std::int64_t count) {
  const float* a = matrix.a + row * args.a.row;
  const float* b = reinterpret_cast<const float*>(matrix.b);
  Vec sums[kLanes] = {};
  for (std::int64_t d = 0; d < args.shape.k; d += kLanes) {
    const std::int64_t depth = min64(kLanes, args.shape.k - d);
    const Vec weights = load_partial(b + d, depth, zero());
    if (count == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        sums[i] = fma(load_partial(a + i * args.a.row + d, depth, zero()), weights, sums[i]);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        if (i < count) sums[i] = fma(load_partial(a + i * args.a.row + d, depth, zero()), weights, sums[i]);
    }
  }
  transpose_square(sums);
  Vec total = zero();
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) total += sums[i];
  return total;
}

// One column is finished as if it were a row: bias and scale are those of all its elements.
void write_column(const Walk& walk, const Matrix& matrix, std::int64_t row, std::int64_t count, Vec value) {
  const GemmArgs& args = *walk.args;
  const EpilogueArgs& epilogue = args.epilogue;
  if (walk.scale) value *= walk.scale[0];
  if (walk.bias) value += walk.bias[0];
  float residual[kLanes] = {}, lanes[kLanes];
  if (matrix.residual)
    for (std::int64_t i = 0; i < count; ++i) residual[i] = matrix.residual[(row + i) * args.residual.row];
  if (!epilogue.residual_after) value += load(residual);
  store(lanes, value);
  finish_column(epilogue, 1, lanes, kLanes, epilogue.residual_after ? residual : nullptr, kLanes);
  float* c = matrix.c + row * args.c.row;
  if (args.c.row == 1) return store_partial(c, load(lanes), count);
  for (std::int64_t i = 0; i < count; ++i) c[i * args.c.row] = lanes[i];
}

void multiply_column(const Walk& walk, std::int64_t matrices, const KernelContext& context) {
  const GemmArgs& args = *walk.args;
  const std::int64_t parts = (args.shape.m + kLanes - 1) / kLanes;
  const WorkRange range = split_work(matrices * parts, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end;) {
    const Matrix matrix = matrix_at(walk, at / parts);
    const std::int64_t end = min64(range.end, (at / parts + 1) * parts);
    for (; at < end; ++at) {
      const std::int64_t row = at % parts * kLanes, count = min64(kLanes, args.shape.m - row);
      write_column(walk, matrix, row, count, column_sums(args, matrix, row, count));
    }
  }
}

// The few columns of a tile of packed B as rows, at `to`.
const char* column_rows(const GemmArgs& args, const char* tile, float* to) {
  const float* from = reinterpret_cast<const float*>(tile);
  for (std::int64_t c = 0; c < args.shape.n; ++c)
    for (std::int64_t d = 0; d < args.shape.k; ++d) to[c * args.shape.k + d] = from[d * args.pack.tail_channels + c];
  return reinterpret_cast<const char*>(to);
}

void gemm_columns_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmArgs& args = *static_cast<const GemmArgs*>(raw_args);
  const std::int64_t matrices = gemm_matrices(args.shape), m = args.shape.m, n = args.shape.n;
  if (matrices * m * n == 0) return;
  const NoDenormals guard;
  Walk walk = start(args, buffers);
  if (args.is_column_tile) walk.first.b = column_rows(args, walk.first.b, static_cast<float*>(context.scratch));
  if (n == 1 && args.shape.k <= kShortColumn) return multiply_column(walk, matrices, context);
  const std::int64_t row_tiles = (m + kDotRows - 1) / kDotRows, chunks = (n + kDotChunk - 1) / kDotChunk;
  const WorkRange range = split_work(matrices * row_tiles * chunks, context.worker, context.workers);
  float sums[kDotRows * kDotChunk] = {};
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const Matrix matrix = matrix_at(walk, at / (row_tiles * chunks));
    const std::int64_t row = at / chunks % row_tiles * kDotRows, first = at % chunks * kDotChunk;
    const std::int64_t rows = min64(kDotRows, m - row), columns = min64(kDotChunk, n - first);
    const float* a = matrix.a + row * args.a.row;
    const float* b = reinterpret_cast<const float*>(matrix.b);
    for (std::int64_t c = 0; c < columns; c += kDotColumns)
      pick_dots(rows, min64(kDotColumns, columns - c))(a, args.a.row, b + (first + c) * args.b_row, args.b_row,
                                                       args.shape.k, sums + c);
    finish_sums(walk, matrix, row, first, rows, columns, sums, kDotChunk);
  }
}

// sums[r][0..count) += the rows [d, d + kDepth) of B times their elements of A. Four rows of B at once: the sums, in
// the L1 cache, are read and written once for four multiply-adds, and B is read sequentially.
template <int kRows, int kDepth>
ENGINE_INLINE void add_rows(const float* a, std::int64_t a_row, const float* b, std::int64_t b_row, std::int64_t count,
                            float* sums, std::int64_t step) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vec row[kDepth];
#pragma GCC unroll 4
    for (int e = 0; e < kDepth; ++e) row[e] = load(b + e * b_row + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Vec sum = load(sums + r * step + i);
#pragma GCC unroll 4
      for (int e = 0; e < kDepth; ++e) sum = fma(broadcast(a[r * a_row + e]), row[e], sum);
      store(sums + r * step + i, sum);
    }
  }
  for (; i < count; ++i)
    for (int r = 0; r < kRows; ++r)
      for (int e = 0; e < kDepth; ++e) sums[r * step + i] += a[r * a_row + e] * b[e * b_row + i];
}

template <int kRows>
void raw_sums(const float* a, std::int64_t a_row, const float* b, std::int64_t b_row, std::int64_t k,
              std::int64_t count, float* sums, std::int64_t step) {
  for (std::int64_t i = 0; i < kRows * step; ++i) sums[i] = 0.0f;
  std::int64_t d = 0;
  for (; d + 4 <= k; d += 4) add_rows<kRows, 4>(a + d, a_row, b + d * b_row, b_row, count, sums, step);
  for (; d < k; ++d) add_rows<kRows, 1>(a + d, a_row, b + d * b_row, b_row, count, sums, step);
}

void gemm_raw_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmArgs& args = *static_cast<const GemmArgs*>(raw_args);
  const std::int64_t matrices = gemm_matrices(args.shape), n = args.shape.n;
  if (matrices * args.shape.m * n == 0) return;
  const NoDenormals guard;
  const Walk walk = start(args, buffers);
  const std::int64_t least = (n + kRawColumns - 1) / kRawColumns, most = (n + 63) / 64;
  const std::int64_t tiles =
      matrices >= context.workers || least >= context.workers ? least : min64(most, context.workers);
  // Split at blocks, so that all tiles but the last have whole vectors.
  const std::int64_t width = ((n + tiles - 1) / tiles + 15) / 16 * 16;
  const WorkRange range = split_work(matrices * tiles, context.worker, context.workers);
  float* sums = static_cast<float*>(context.scratch);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const Matrix matrix = matrix_at(walk, at / tiles);
    const std::int64_t column = at % tiles * width, count = min64(width, n - column);
    if (count <= 0) continue;
    const auto sum = args.shape.m == 1   ? raw_sums<1>
                     : args.shape.m == 2 ? raw_sums<2>
                     : args.shape.m == 3 ? raw_sums<3>
                                         : raw_sums<4>;
    sum(matrix.a, args.a.row, reinterpret_cast<const float*>(matrix.b) + column, args.b_row, args.shape.k, count, sums,
        width);
    finish_sums(walk, matrix, 0, column, args.shape.m, count, sums, width);
  }
}

// A value as an element of packed weights, which must be exact there.
template <class Weight>
ENGINE_INLINE Weight to_weight(float value) {
  if constexpr (std::is_same_v<Weight, Bf16>)
    return to_bf16(value);
  else if constexpr (std::is_same_v<Weight, F16>)
    return to_f16(value);
  else
    return value;
}

// Packs one tile of columns of B, of which `valid` exist, as in pack.hpp.
template <class Weight>
void pack_tile(const PackArgs& pack, const float* from, std::int64_t k, std::int64_t width, std::int64_t valid,
               char* packed) {
  const std::int64_t channel = pack.channel_stride, depth = pack.depth_stride;
  Weight* to = reinterpret_cast<Weight*>(packed);
  if (channel != 1 && depth == 1) {
    for (std::int64_t done = 0; done < k; done += kLanes) {
      const std::int64_t count = min64(kLanes, k - done);
      for (std::int64_t v = 0; v < width; v += kLanes) {
        Vec rows[kLanes];
        if (count == kLanes && v + kLanes <= valid) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) rows[i] = load(from + (v + i) * channel + done);
        } else {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i)
            rows[i] = v + i < valid ? load_partial(from + (v + i) * channel + done, count, zero()) : zero();
        }
        transpose_square(rows);
        if (count == kLanes) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) store(to + (done + i) * width + v, rows[i]);
        } else {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i)
            if (i < count) store(to + (done + i) * width + v, rows[i]);
        }
      }
    }
    return;
  }
  for (std::int64_t d = 0; d < k; ++d) {
    std::int64_t i = 0;
    if (channel == 1) {
      for (; i + kLanes <= valid; i += kLanes) store(to + d * width + i, load(from + d * depth + i));
      if (i < valid) {
        store(to + d * width + i, load_partial(from + d * depth + i, valid - i, zero()));
        i += kLanes;
      }
    }
    for (; i < valid; ++i) to[d * width + i] = to_weight<Weight>(from[i * channel + d * depth]);
    for (; i < width; ++i) to[d * width + i] = {};
  }
}

void gemm_pack_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmPackArgs& args = *static_cast<const GemmPackArgs*>(raw_args);
  const PackArgs& pack = args.pack;
  std::int64_t matrices = 1;
  for (int d = 0; d < args.rank; ++d) matrices *= args.batch[d];
  if (matrices * args.n * args.k == 0) return;
  const bool is_tiles = args.form == GemmForm::kTiles;
  const std::int64_t tiles = is_tiles ? (args.n + pack.tile_channels - 1) / pack.tile_channels : args.n;
  const WorkRange range = split_work(matrices * tiles, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const float* from = static_cast<const float*>(buffers[args.from]);
    std::int64_t index = at / tiles;
    char* to = static_cast<char*>(buffers[args.to]) + index * args.matrix_floats * weight_bytes(args.element);
    for (int d = args.rank - 1; d >= 0; --d) {
      from += index % args.batch[d] * args.source[d];
      index /= args.batch[d];
    }
    const std::int64_t tile = at % tiles;
    if (is_tiles) {
      const std::int64_t first = tile * pack.tile_channels;
      const std::int64_t width = tile == tiles - 1 ? pack.tail_channels : pack.tile_channels;
      const auto pack_as = args.element == ElementCode::kF32    ? pack_tile<float>
                           : args.element == ElementCode::kBF16 ? pack_tile<Bf16>
                                                                : pack_tile<F16>;
      pack_as(pack, from + first * pack.channel_stride, args.k, width, min64(width, args.n - first),
              to + first * args.k * weight_bytes(args.element));
    } else {
      float* column = reinterpret_cast<float*>(to) + tile * args.k;
      for (std::int64_t d = 0; d < args.k; ++d) column[d] = from[tile * pack.channel_stride + d * pack.depth_stride];
    }
  }
}

}  // namespace

extern const KernelEntry gemm_kernels[] = {{"gemm_f32", gemm_f32, &tile_traits},
                                           {"gemm_columns_f32", gemm_columns_f32, nullptr},
                                           {"gemm_raw_f32", gemm_raw_f32, nullptr},
                                           {"gemm_pack_f32", gemm_pack_f32, nullptr},
                                           {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
