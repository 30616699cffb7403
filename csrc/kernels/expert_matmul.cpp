// expert_matmul_f32, expert_matmul_int8: see expert_matmul.hpp. expert_order and expert_digits run before them.
//
// Operands: x, experts, W, [scales], [zero points], [bias], y, order, [digits]. y must not overlap the others. The
// order is [experts + 1] i64 offsets, and the rows (token * ways + way) of each expert, i64. Split over groups of
// columns of the chosen experts, by the time that they take.
#include "kernels/expert_matmul.hpp"

#include "kernels/digits_vector.hpp"
#include "kernels/index.hpp"
#include "simd/half.hpp"
#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// The columns of codes that are multiplied together: with several rows, and with one.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRowsAtOnce = 4, kColumnsOfRows = 2, kColumnsOfRow = 4;
constexpr int kF32Rows = 4;
#else
constexpr int kRowsAtOnce = 2, kColumnsOfRows = 1, kColumnsOfRow = 2;
constexpr int kF32Rows = 2;
#endif
constexpr int kMaxColumns = kColumnsOfRow;
constexpr int kF32Columns = 4;
// Elements of rows of f32 weights that stay in the L1 cache for all rows of x.
constexpr std::int64_t kF32Part = 1024;
// The rows whose products take as long as reading the weights.
constexpr std::int64_t kFreeRowsF32 = 16, kFreeRowsCodes = 4;
const ExpertTraits kTraits = {kVectorBytes};

struct Operands {
  const float* x;
  const std::uint8_t* weights;
  const float* scales;
  const std::uint8_t* zero_points;
  const float* bias;
  float* y;
  const std::int64_t* offsets;
  const std::int64_t* rows;
  const char* digits;
};

Operands operands_of(const ExpertMatmulArgs& args, void* const* buffers) {
  Operands found = {};
  found.x = static_cast<const float*>(buffers[0]);
  found.weights = static_cast<const std::uint8_t*>(buffers[2]);
  int next = 3;
  if (args.bits != 0) found.scales = static_cast<const float*>(buffers[next++]);
  if (args.has_zero_points) found.zero_points = static_cast<const std::uint8_t*>(buffers[next++]);
  if (args.has_bias) found.bias = static_cast<const float*>(buffers[next++]);
  found.y = static_cast<float*>(buffers[args.y_at]);
  found.offsets = static_cast<const std::int64_t*>(buffers[args.y_at + 1]);
  found.rows = found.offsets + args.experts + 1;
  if (args.bits != 0) found.digits = static_cast<const char*>(buffers[args.y_at + 2]);
  return found;
}

// The row of x that row `row` of y is computed from.
ENGINE_INLINE std::int64_t x_row(const ExpertMatmulArgs& args, std::int64_t row) {
  return args.x_ways == 1 ? row / args.ways : row;
}

// -- the rows of each expert ----------------------------------------------------------------------------------------

std::int64_t expert_of(const ExpertMatmulArgs& args, const void* experts, std::int64_t row,
                       const KernelContext& context) {
  const std::int64_t index = load_index(experts, row, args.index_bytes);
  if (index == kNoExpert) {
    report_index(context, kNoExpert + row / args.ways, args.experts);
    return 0;
  }
  return max64(0, resolve_index(index, args.experts, context));
}

void write_order(const ExpertMatmulArgs& args, void* const* buffers, const KernelContext& context) {
  const std::int64_t count = args.tokens * args.ways;
  std::int64_t* offsets = static_cast<std::int64_t*>(buffers[args.y_at + 1]);
  std::int64_t* rows = offsets + args.experts + 1;
  for (std::int64_t e = 0; e <= args.experts; ++e) offsets[e] = 0;
  for (std::int64_t row = 0; row < count; ++row) ++offsets[expert_of(args, buffers[1], row, context) + 1];
  for (std::int64_t e = 0; e < args.experts; ++e) offsets[e + 1] += offsets[e];
  // Backwards, each offset goes from the end of its expert's rows to their beginning; then all are one too far.
  for (std::int64_t row = count - 1; row >= 0; --row)
    rows[--offsets[expert_of(args, buffers[1], row, context) + 1]] = row;
  for (std::int64_t e = 0; e < args.experts; ++e) offsets[e] = offsets[e + 1];
  offsets[args.experts] = count;
}

void expert_order(const void* raw_args, void* const* buffers, const KernelContext& context) {
  if (context.worker == 0) write_order(*static_cast<const ExpertMatmulArgs*>(raw_args), buffers, context);
}

// -- shares of the work ---------------------------------------------------------------------------------------------

// Calls run(expert, first column, end) for each group of columns of a worker's share.
template <class Run>
ENGINE_INLINE void for_each_group(const ExpertMatmulArgs& args, const Operands& of, std::int64_t free_rows,
                                  const KernelContext& context, Run run) {
  const std::int64_t groups = (args.n + kExpertColumns - 1) / kExpertColumns;
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < args.experts; ++e)
    if (const std::int64_t rows = of.offsets[e + 1] - of.offsets[e]) total += max64(rows, free_rows) * groups;
  const WorkRange share = split_work(total, context.worker, context.workers);
  std::int64_t at = 0;
  for (std::int64_t e = 0; e < args.experts && at < share.end; ++e) {
    const std::int64_t rows = of.offsets[e + 1] - of.offsets[e];
    if (rows == 0) continue;
    const std::int64_t cost = max64(rows, free_rows);
    // The groups that begin in the share.
    const std::int64_t first = max64(0, (share.begin - at + cost - 1) / cost);
    const std::int64_t end = min64(groups, (share.end - at + cost - 1) / cost);
    for (std::int64_t group = share.begin > at ? first : 0; group < end; ++group)
      run(e, group * kExpertColumns, min64(args.n, (group + 1) * kExpertColumns));
    at += cost * groups;
  }
}

// -- f32 ------------------------------------------------------------------------------------------------------------

// sums[r][c] of kRows rows of x and kColumns rows of W, `w_step` elements apart.
template <int kRows, int kColumns>
void dot_f32(const float* const* x, const float* w, std::int64_t w_step, std::int64_t count, float* sums) {
  Vec acc[kRows][kColumns] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vec weights[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) weights[c] = load(w + c * w_step + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec value = load(x[r] + i);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(value, weights[c], acc[r][c]);
    }
  }
  if (i < count) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec value = load_partial(x[r] + i, count - i, zero());
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c)
        acc[r][c] = fma(value, load_partial(w + c * w_step + i, count - i, zero()), acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sums[r * kColumns + c] = reduce_add(acc[r][c]);
}

// kLanes weights as f32.
ENGINE_INLINE Vec load_weights(const float* from) {
  return load(from);
}
ENGINE_INLINE Vec load_weights(const Bf16* from) {
  return load(from);
}
ENGINE_INLINE Vec load_weights(const F16* from) {
#if defined(__F16C__) || defined(__aarch64__)
  return load(from);
#else
  Vec found;  // load is for finite numbers only
  for (int i = 0; i < kLanes; ++i) found[i] = to_f32(from[i]);
  return found;
#endif
}
ENGINE_INLINE Vec load_some_weights(const float* from, std::int64_t count) {
  return load_partial(from, count, zero());
}
template <class T>
ENGINE_INLINE Vec load_some_weights(const T* from, std::int64_t count) {
  Vec found = zero();
  for (int i = 0; i < kLanes; ++i)
    if (i < count) found[i] = to_f32(from[i]);
  return found;
}

// The sum for one row of x and one of W, which is read as a stream.
template <class T>
float dot_stream(const float* x, const void* row, std::int64_t count) {
  constexpr int kAccumulators = 4;
  constexpr std::int64_t kOfPage = kExpertPage / static_cast<std::int64_t>(sizeof(T)), kOfLine = 64 / sizeof(T);
  const T* w = static_cast<const T*>(row);
  Vec acc[kAccumulators] = {};
  std::int64_t i = 0;
  for (; i + kAccumulators * kLanes <= count; i += kAccumulators * kLanes) {
    const char* at = reinterpret_cast<const char*>(w + i);
    if (i % kOfPage == 0) __builtin_prefetch(at + kExpertPagesAhead);
#pragma GCC unroll 4
    for (int a = 0; a < kAccumulators; ++a) {
      if (a * kLanes % kOfLine == 0)
        __builtin_prefetch(at + kExpertAhead + a * kLanes * static_cast<int>(sizeof(T)), 0, 2);
      acc[a] = fma(load(x + i + a * kLanes), load_weights(w + i + a * kLanes), acc[a]);
    }
  }
  for (; i < count; i += kLanes) {
    const std::int64_t rest = min64(kLanes, count - i);
    acc[0] = fma(load_partial(x + i, rest, zero()), load_some_weights(w + i, rest), acc[0]);
  }
  return reduce_add((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

using DotStream = float (*)(const float*, const void*, std::int64_t);

DotStream pick_stream(ElementCode weights) {
  switch (weights) {
    case ElementCode::kF16:
      return dot_stream<F16>;
    case ElementCode::kBF16:
      return dot_stream<Bf16>;
    default:
      return dot_stream<float>;
  }
}

template <class T>
void widen_run(const void* row, std::int64_t begin, std::int64_t end, float* to) {
  const T* from = static_cast<const T*>(row) + begin;
  const std::int64_t count = end - begin;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load_weights(from + i));
  for (; i < count; ++i) to[i] = to_f32(from[i]);
}

using DotF32 = void (*)(const float* const*, const float*, std::int64_t, std::int64_t, float*);

template <int kRows>
DotF32 pick_columns_f32(std::int64_t columns) {
  static const DotF32 table[kF32Columns] = {dot_f32<kRows, 1>, dot_f32<kRows, 2>, dot_f32<kRows, 3>, dot_f32<kRows, 4>};
  return table[columns - 1];
}

DotF32 pick_f32(std::int64_t rows, std::int64_t columns) {
  switch (rows) {
    case 1:
      return pick_columns_f32<1>(columns);
    case 2:
      return pick_columns_f32<2>(columns);
#if defined(__AVX512F__) || defined(__aarch64__)
    case 3:
      return pick_columns_f32<3>(columns);
    default:
      return pick_columns_f32<4>(columns);
#else
    default:
      return nullptr;
#endif
  }
}

// Rows of f32 weights, `step` elements apart.
struct Run {
  const float* w;
  std::int64_t step;
};

// Elements [begin, end) of columns of an expert; of a narrower type, in `wide`.
Run run_of(const ExpertMatmulArgs& args, const Operands& of, std::int64_t row, std::int64_t columns, std::int64_t begin,
           std::int64_t end, float* wide) {
  const std::uint8_t* from = of.weights + row * args.row_weights;
  if (args.weights == ElementCode::kF32) return {reinterpret_cast<const float*>(from) + begin, args.k};
  for (std::int64_t c = 0; c < columns; ++c)
    (args.weights == ElementCode::kF16 ? widen_run<F16> : widen_run<Bf16>)(from + c * args.row_weights, begin, end,
                                                                           wide + c * kF32Part);
  return {wide, kF32Part};
}

// Adds the products of elements [begin, end) to y, or writes them if begin is 0.
void part_f32(const ExpertMatmulArgs& args, const Operands& of, std::int64_t e, std::int64_t column,
              std::int64_t columns, std::int64_t begin, std::int64_t end) {
  float wide[kF32Columns * kF32Part];
  const Run run = run_of(args, of, e * args.n + column, columns, begin, end, wide);
  const float* bias = of.bias && begin == 0 ? of.bias + e * args.n + column : nullptr;
  const std::int64_t last = of.offsets[e + 1];
  for (std::int64_t at = of.offsets[e]; at < last; at += kF32Rows) {
    const std::int64_t count = min64(kF32Rows, last - at);
    const float* x[kF32Rows];
    for (std::int64_t r = 0; r < count; ++r) x[r] = of.x + x_row(args, of.rows[at + r]) * args.k + begin;
    float sums[kF32Rows * kF32Columns];
    pick_f32(count, columns)(x, run.w, run.step, end - begin, sums);
    for (std::int64_t r = 0; r < count; ++r) {
      float* y = of.y + of.rows[at + r] * args.n + column;
      for (std::int64_t c = 0; c < columns; ++c) {
        const float sum = sums[r * columns + c] + (bias ? bias[c] : 0.0f);
        y[c] = begin == 0 ? sum : y[c] + sum;
      }
    }
  }
}

// Columns [first, end) of an expert with one row.
void row_f32(const ExpertMatmulArgs& args, const Operands& of, std::int64_t e, std::int64_t first, std::int64_t end) {
  const std::int64_t row = of.rows[of.offsets[e]];
  const float* x = of.x + x_row(args, row) * args.k;
  const std::uint8_t* w = of.weights + e * args.n * args.row_weights;
  const DotStream dot = pick_stream(args.weights);
  for (std::int64_t column = first; column < end; ++column)
    of.y[row * args.n + column] =
        dot(x, w + column * args.row_weights, args.k) + (of.bias ? of.bias[e * args.n + column] : 0.0f);
}

void expert_matmul_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ExpertMatmulArgs& args = *static_cast<const ExpertMatmulArgs*>(raw_args);
  const Operands of = operands_of(args, buffers);
  for_each_group(args, of, kFreeRowsF32, context, [&](std::int64_t e, std::int64_t first, std::int64_t end) {
    const std::int64_t rows = of.offsets[e + 1] - of.offsets[e];
    if (rows == 1) return row_f32(args, of, e, first, end);
    const bool is_whole = rows <= kF32Rows && args.weights == ElementCode::kF32;
    const std::int64_t part = is_whole ? max64(args.k, 1) : kF32Part;
    for (std::int64_t column = first; column < end; column += kF32Columns) {
      const std::int64_t columns = min64(kF32Columns, end - column);
      std::int64_t begin = 0;
      do {
        part_f32(args, of, e, column, columns, begin, min64(args.k, begin + part));
        begin += part;
      } while (begin < args.k);
    }
  });
}

// -- digits ---------------------------------------------------------------------------------------------------------

// A chunk of x in the order of the codes of a register: with 4 bits, those in low halves of bytes, then the others.
void gather_chunk(const ExpertMatmulArgs& args, const float* x, std::int64_t count, float* to) {
  if (args.bits == 8) {
    for (std::int64_t i = 0; i < args.chunk; ++i) to[i] = i < count ? x[i] : 0.0f;
    return;
  }
  const std::int64_t half = args.chunk / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    to[i] = 2 * i < count ? x[2 * i] : 0.0f;
    to[half + i] = 2 * i + 1 < count ? x[2 * i + 1] : 0.0f;
  }
}

// Whether the zero point of all codes, the middle of their range, is subtracted from sums of integers, which then stay
// below 2^31: each chunk has, for each lane, the sum of the integers times it, negative; otherwise, their sum in f32.
ENGINE_INLINE bool has_integer_starts(const ExpertMatmulArgs& args) {
  return !args.has_zero_points && (args.bits == 4 || args.digits == 1);
}

template <int kDigits>
void chunk_digits(const ExpertMatmulArgs& args, const float* x, std::int64_t count, float factor, char* to) {
  float values[2 * kVectorBytes];
  std::int32_t whole[2 * kVectorBytes];
  gather_chunk(args, x, count, values);
  std::uint8_t* digits = reinterpret_cast<std::uint8_t*>(to + kVectorBytes);
  for (std::int64_t i = 0; i < args.chunk; i += kLanes) {
    // The digits of a row with NaN or infinities are not used.
    const VecInt integers = factor > 0.0f ? integers_of(load(values + i), factor) : VecInt{};
    store_ints(whole + i, integers);
    const VecInt biased = biased_digits<kDigits>(integers);
    for (int d = 0; d < kDigits; ++d) store_bytes(digits + d * args.chunk + i, digit_of<kDigits>(biased, d));
  }
  std::int32_t sums[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    std::int32_t sum = 0;
    for (std::int64_t start = 4 * lane; start < args.chunk; start += kVectorBytes)
      for (int i = 0; i < 4; ++i) sum += whole[start + i];
    sums[lane] = sum;
  }
  if (has_integer_starts(args))
    store_ints(reinterpret_cast<std::int32_t*>(to), load_ints(sums) * (args.bits == 4 ? -8 : -128));
  else
    store(reinterpret_cast<float*>(to), to_floats(load_ints(sums)));
}

void expert_digits(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ExpertMatmulArgs& args = *static_cast<const ExpertMatmulArgs*>(raw_args);
  if (context.worker == 0) write_order(args, buffers, context);
  char* digits = static_cast<char*>(buffers[args.y_at + 2]);
  const std::int64_t bytes = kVectorBytes + args.digits * args.chunk;
  const WorkRange range = split_work(args.tokens * args.x_ways, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const float* x = static_cast<const float*>(buffers[0]) + row * args.k;
    char* to = digits + row * args.digit_row;
    const Unit unit = unit_of(largest(x, args.k), args.digits);
    std::memcpy(to, &unit.unit, sizeof unit.unit);
    for (std::int64_t chunk = 0; chunk < args.chunks; ++chunk) {
      const std::int64_t first = chunk * args.chunk;
      const std::int64_t count = min64(args.chunk, args.k - first);
      char* at = to + kExpertDigitsAt + chunk * bytes;
      if (args.digits == 1)
        chunk_digits<1>(args, x + first, count, unit.factor, at);
      else
        chunk_digits<3>(args, x + first, count, unit.factor, at);
    }
  }
}

// -- codes ----------------------------------------------------------------------------------------------------------

// One row of a matrix of codes.
struct Column {
  const std::uint8_t* codes;
  const float* scales;
  const std::uint8_t* zero_points;
};

Column column_of(const ExpertMatmulArgs& args, const Operands& of, std::int64_t row) {
  return {of.weights + row * args.row_weights, of.scales + row * args.blocks,
          of.zero_points ? of.zero_points + row * args.row_zero_points : nullptr};
}

template <int kBits>
ENGINE_INLINE float zero_point_of(const Column& column, std::int64_t block) {
  if (column.zero_points == nullptr) return kBits == 4 ? 8.0f : 128.0f;
  if constexpr (kBits == 8) return column.zero_points[block];
  return static_cast<float>((column.zero_points[block / 2] >> (block % 2 * 4)) & 15);
}

struct Factors {
  Vec scale, zero_point;
};

// The zero points of a chunk's blocks, from block `first` on, for its lanes.
template <int kBits>
ENGINE_INLINE Vec zero_points_in_chunk(const ExpertMatmulArgs& args, const Column& column, std::int64_t first,
                                       VecInt in_chunk) {
  constexpr std::int64_t kOfWord = 32 / kBits;
  if (args.in_chunk <= kOfWord) {  // they begin with a byte, since there are two or more
    const std::int64_t at = first * kBits / 8, rest = args.row_zero_points - at;
    std::uint32_t word = 0;
    if (rest >= 4)
      std::memcpy(&word, column.zero_points + at, sizeof word);
    else
      for (std::int64_t i = 0; i < rest; ++i) word |= std::uint32_t{column.zero_points[at + i]} << (8 * i);
    const VecBits shifted = (VecBits{} + word) >> (VecBits)(in_chunk * kBits);
    return to_floats((VecInt)shifted & ((1 << kBits) - 1));
  }
  Vec found = zero();
  const std::int64_t count = min64(args.blocks - first, args.in_chunk);
  for (std::int64_t i = 0; i < count; ++i) found[i] = zero_point_of<kBits>(column, first + i);
  return ENGINE_SHUFFLE(found, in_chunk);
}

// The scales and zero points of the lanes of a chunk, whose first block is `first`.
template <int kBits, ExpertBlocks kLayout>
ENGINE_INLINE Factors factors_of(const ExpertMatmulArgs& args, const Column& column, std::int64_t chunk,
                                 std::int64_t first, VecInt in_chunk) {
  if constexpr (kLayout == ExpertBlocks::kOfChunks)
    return {broadcast(column.scales[first]), broadcast(zero_point_of<kBits>(column, first))};
  Vec scale = zero(), zero_point = broadcast(kBits == 4 ? 8.0f : 128.0f);
  if constexpr (kLayout == ExpertBlocks::kInChunks) {
    const std::int64_t rest = args.blocks - first;
    scale = rest >= kLanes ? load(column.scales + first) : load_partial(column.scales + first, rest, zero());
    if (column.zero_points) zero_point = zero_points_in_chunk<kBits>(args, column, first, in_chunk);
    return {ENGINE_SHUFFLE(scale, in_chunk), zero_point};
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t block = min64(args.blocks - 1, (chunk * args.chunk + lane * (32 / kBits)) / args.block);
    scale[lane] = column.scales[block];
    zero_point[lane] = zero_point_of<kBits>(column, block);
  }
  return {scale, zero_point};
}

// The sums of the integers of a chunk, as f32: of their digits with codes. `x` has the digits, `start` what is added.
template <int kBits, int kDigits>
ENGINE_INLINE Vec sums_of_chunk(const VecInt (&codes)[2], const std::uint8_t* x, VecInt start) {
  constexpr std::int64_t kChunk = kVectorBytes * 8 / kBits;
  const auto add = [&](int digit, VecInt sum) {
    const std::uint8_t* digits = x + digit * kChunk;
    sum = dot_bytes<kBits == 4>(codes[0], load_byte_quads(digits), sum);
    if constexpr (kBits == 4) sum = dot_bytes<true>(codes[1], load_byte_quads(digits + kVectorBytes), sum);
    return sum;
  };
  if constexpr (kDigits == 1) return to_floats(add(0, start));
  const VecInt high = add(1, add(0, VecInt{}) << 8);
  if constexpr (kBits == 4) return to_floats((high << 8) + add(2, start));  // below 2^30
  return fma(to_floats(high), broadcast(256.0f), to_floats(add(2, start)));
}

// Prefetches `kLines` cache lines. In the order of their addresses, since the hardware reads ahead of such a sequence,
// and has more reads under way than a core's own: columns are multiplied together, but their codes arrive one by one.
template <int kLines>
ENGINE_INLINE void prefetch_lines(const char*& from) {
#pragma GCC unroll 4
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(from + 64 * i, 0, 2);
  from += 64 * kLines;
}

// The sums of kRows rows of x, as digits, with kColumns rows of codes, one behind the other.
template <int kBits, int kDigits, ExpertBlocks kLayout, int kRows, int kColumns>
void dot_codes(const ExpertMatmulArgs& args, const Column* columns, const char* const* rows, float* sums) {
  constexpr std::int64_t kChunk = kVectorBytes * 8 / kBits;
  const VecInt in_chunk = load_ints(args.lane_blocks);
  const bool has_starts = has_integer_starts(args);
  Vec y[kRows][kColumns] = {};
  const char* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r] + kExpertDigitsAt;
  const char* codes_ahead =
      reinterpret_cast<const char*>(columns[0].codes) + kExpertAhead + kColumns * args.row_weights;
  const char* scales_ahead =
      reinterpret_cast<const char*>(columns[0].scales + args.scales_ahead + kColumns * args.blocks);
  std::int64_t block = 0, in_block = 0;  // of the chunk: its first block; chunks of this block before it
  for (std::int64_t chunk = 0; chunk < args.chunks; ++chunk) {
    const std::int64_t at = chunk * kVectorBytes, rest = args.row_weights - at;
    if (at % 64 == 0) prefetch_lines<kColumns>(codes_ahead);
    if (in_block == 0 && block % 16 < args.in_chunk) prefetch_lines<kColumns>(scales_ahead);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      VecInt packed;
      if (rest >= kVectorBytes) {
        packed = load_byte_quads(columns[c].codes + at);
      } else {  // the activations behind the end are zero
        alignas(kVectorBytes) std::uint8_t last[kVectorBytes] = {};
        std::memcpy(last, columns[c].codes + at, static_cast<std::size_t>(rest));
        packed = load_byte_quads(last);
      }
      VecInt codes[2] = {packed, packed};
      if constexpr (kBits == 4) {
        codes[0] = packed & 0x0f0f0f0f;
        codes[1] = (VecInt)((VecBits)packed >> 4) & 0x0f0f0f0f;
      }
      const Factors factors = factors_of<kBits, kLayout>(args, columns[c], chunk, block, in_chunk);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const std::uint8_t* digits = reinterpret_cast<const std::uint8_t*>(x[r]) + kVectorBytes;
        if (has_starts) {
          const VecInt start = load_ints(reinterpret_cast<const std::int32_t*>(x[r]));
          y[r][c] = fma(sums_of_chunk<kBits, kDigits>(codes, digits, start), factors.scale, y[r][c]);
        } else {
          const Vec of_x = load(reinterpret_cast<const float*>(x[r]));
          const Vec of_codes = sums_of_chunk<kBits, kDigits>(codes, digits, VecInt{});
          y[r][c] = fma(fma(-factors.zero_point, of_x, of_codes), factors.scale, y[r][c]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) x[r] += kVectorBytes + kDigits * kChunk;
    if (kLayout == ExpertBlocks::kInChunks) {
      block += args.in_chunk;
    } else if (++in_block == args.chunks_of_block) {
      in_block = 0;
      ++block;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c)
      sums[r * kColumns + c] = reduce_add(y[r][c]) * reinterpret_cast<const float*>(rows[r])[0];
}

using DotCodes = void (*)(const ExpertMatmulArgs&, const Column*, const char* const*, float*);

// A product of so many rows and columns.
struct Product {
  DotCodes run;
  std::int64_t rows, columns;
};

template <int kBits, int kDigits, ExpertBlocks kLayout>
Product pick_rows(std::int64_t rows, std::int64_t columns) {
  constexpr int kMore = kColumnsOfRows, kMost = kColumnsOfRow;
  if (rows > 2 && columns >= kMore) return {dot_codes<kBits, kDigits, kLayout, kRowsAtOnce, kMore>, kRowsAtOnce, kMore};
  if (rows == 2 && columns >= kMore) return {dot_codes<kBits, kDigits, kLayout, 2, kMore>, 2, kMore};
  if (rows == 1 && columns >= kMost) return {dot_codes<kBits, kDigits, kLayout, 1, kMost>, 1, kMost};
  return {dot_codes<kBits, kDigits, kLayout, 1, 1>, 1, 1};
}

template <int kBits, int kDigits>
Product pick_layout(const ExpertMatmulArgs& args, std::int64_t rows, std::int64_t columns) {
  switch (args.layout) {
    case ExpertBlocks::kOfChunks:
      return pick_rows<kBits, kDigits, ExpertBlocks::kOfChunks>(rows, columns);
    case ExpertBlocks::kInChunks:
      return pick_rows<kBits, kDigits, ExpertBlocks::kInChunks>(rows, columns);
    case ExpertBlocks::kIrregular:
      break;
  }
  return {dot_codes<kBits, kDigits, ExpertBlocks::kIrregular, 1, 1>, 1, 1};
}

Product pick_product(const ExpertMatmulArgs& args, std::int64_t rows, std::int64_t columns) {
  if (args.bits == 4)
    return args.digits == 1 ? pick_layout<4, 1>(args, rows, columns) : pick_layout<4, 3>(args, rows, columns);
  return args.digits == 1 ? pick_layout<8, 1>(args, rows, columns) : pick_layout<8, 3>(args, rows, columns);
}

// The sum of one row of x with one row of codes in f32, as in the definition.
template <int kBits>
ENGINE_NOINLINE float dot_plainly(const ExpertMatmulArgs& args, const Column& column, const float* x) {
  float sum = 0.0f;
  for (std::int64_t k = 0; k < args.k; ++k) {
    const std::uint8_t byte = column.codes[kBits == 4 ? k / 2 : k];
    const int code = kBits == 4 ? (byte >> (k % 2 * 4)) & 15 : byte;
    const std::int64_t block = k / args.block;
    sum += (static_cast<float>(code) - zero_point_of<kBits>(column, block)) * column.scales[block] * x[k];
  }
  return sum;
}

// As many columns of expert e from `column` on as the product computes, for `count` of its rows, of which the product
// computes as many or more.
void store_product(const ExpertMatmulArgs& args, const Operands& of, const Product& product, std::int64_t e,
                   std::int64_t column, const std::int64_t* rows, std::int64_t count) {
  const char* digits[kRowsAtOnce];
  for (std::int64_t r = 0; r < product.rows; ++r)  // three rows are computed as four
    digits[r] = of.digits + x_row(args, rows[min64(r, count - 1)]) * args.digit_row;
  Column columns[kMaxColumns];
  for (std::int64_t c = 0; c < product.columns; ++c) columns[c] = column_of(args, of, e * args.n + column + c);
  float sums[kRowsAtOnce * kMaxColumns];
  product.run(args, columns, digits, sums);
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t c = 0; c < product.columns; ++c) {
      float sum = sums[r * product.columns + c];
      if (sum != sum)
        sum =
            (args.bits == 4 ? dot_plainly<4> : dot_plainly<8>)(args, columns[c], of.x + x_row(args, rows[r]) * args.k);
      of.y[rows[r] * args.n + column + c] = sum + (of.bias ? of.bias[e * args.n + column + c] : 0.0f);
    }
}

// Reads a byte of each page whose codes and scales are read soon: translating its address takes longer than reading.
void touch_pages(const ExpertMatmulArgs& args, const Column& first, std::int64_t columns) {
  const std::uint8_t* codes = first.codes + kExpertPagesAhead;
  for (std::int64_t i = 0; i < columns * args.row_weights; i += kExpertPage) __builtin_prefetch(codes + i);
  __builtin_prefetch(first.scales + kExpertPage / 4);
}

// Columns [first, end) of expert e: the codes of a few columns stay in cache for all rows.
void columns_of_codes(const ExpertMatmulArgs& args, const Operands& of, std::int64_t e, std::int64_t first,
                      std::int64_t end) {
  const std::int64_t last = of.offsets[e + 1];
  for (std::int64_t at = of.offsets[e]; at < last;) {
    const std::int64_t count = min64(kRowsAtOnce, last - at);
    for (std::int64_t column = first; column < end;) {
      const Product product = pick_product(args, count, end - column);
      if (at == of.offsets[e]) touch_pages(args, column_of(args, of, e * args.n + column), product.columns);
      for (std::int64_t r = 0; r < count; r += product.rows)
        store_product(args, of, product, e, column, of.rows + at + r, min64(product.rows, count - r));
      column += product.columns;
    }
    at += count;
  }
}

void expert_matmul_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ExpertMatmulArgs& args = *static_cast<const ExpertMatmulArgs*>(raw_args);
  const Operands of = operands_of(args, buffers);
  for_each_group(args, of, kFreeRowsCodes, context, [&](std::int64_t e, std::int64_t first, std::int64_t end) {
    columns_of_codes(args, of, e, first, end);
  });
}

}  // namespace

extern const KernelEntry expert_matmul_kernels[] = {{"expert_matmul_f32", expert_matmul_f32, nullptr},
                                                    {"expert_matmul_int8", expert_matmul_int8, &kTraits},
                                                    {"expert_order", expert_order, nullptr},
                                                    {"expert_digits", expert_digits, nullptr},
                                                    {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
