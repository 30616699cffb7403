// gemm_weights_int8: products with blocked weights of 4 or 8 bits (gemm_weights.hpp). weight_digits_int8: the digits of
// A, as a phase before it, unless each worker makes them itself.
//
// Operands: A, W, [bias], [residual], C, [digits]. A, C and the residual are dense f32 with float alignment; C may be
// the residual, and must not overlap the others. Split over rows and groups of columns. A row with NaN or infinities is
// computed by a loop over f32 weights, so that it has the results of the definition.
#include "kernels/gemm_weights.hpp"

#include "kernels/activation.hpp"
#include "kernels/digits_vector.hpp"
#include "kernels/weights_vector.hpp"
#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kPairLanes = 2 * kLanes;  // columns that are computed together
constexpr int kPairs = kWeightColumns / kPairLanes;
#if defined(__AVX512F__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int kMaxRows = 4;  // 24 accumulators
#else
constexpr int kMaxRows = 1;
#endif
// The number of rows up to which this is faster than multiplying with dequantized weights of 4 and of 8 bits.
#if defined(__AVX512VNNI__)
const WeightsTraits kTraits = {1 << 30, 1 << 30};
#elif defined(__AVX512F__) || defined(__ARM_FEATURE_DOTPROD)
const WeightsTraits kTraits = {16, 6};
#else
const WeightsTraits kTraits = {8, 4};
#endif
// How far ahead of their use weights are prefetched. The hardware's prefetcher is late where each core reads as fast as
// memory delivers.
constexpr std::int64_t kAhead = 2048;

// The digits of one row of A.
struct Row {
  const PieceStart* starts;
  const std::uint8_t* digits;
};

ENGINE_INLINE Row row_at(const DigitsLayout& layout, const char* digits, std::int64_t row) {
  const char* at = digits + row * layout.row_bytes;
  return {reinterpret_cast<const PieceStart*>(at), reinterpret_cast<const std::uint8_t*>(at + layout.digits_at)};
}

// The digits of one piece, the most significant first, and their sums. The padding of a piece is zero.
template <int kDigits>
void write_digits(const float* x, std::int64_t count, std::int64_t length, float factor, std::uint8_t* to,
                  std::int32_t* sums) {
  VecInt total[kDigits] = {};
  for (std::int64_t i = 0; i < length; i += kLanes) {
    const std::int64_t valid = count - i < 0 ? 0 : min64(kLanes, count - i);
    const Vec values = valid == kLanes ? load(x + i) : load_partial(x + i, valid, zero());
    const VecInt biased = biased_digits<kDigits>(integers_of(values, factor));
#pragma GCC unroll 3
    for (int d = 0; d < kDigits; ++d) {
      const VecInt byte = digit_of<kDigits>(biased, d);
      store_bytes(to + d * length + i, byte);
      total[d] += (byte ^ 128) - 128;
    }
  }
  for (int d = 0; d < kDigits; ++d) {
    std::int32_t sum = 0;
    for (int l = 0; l < kLanes; ++l) sum += total[d][l];
    sums[d] = sum;
  }
}

void make_digits(const GemmWeightsArgs& args, const float* row, std::int64_t record, char* to) {
  const DigitsLayout& layout = args.layout;
  const WorkRange range = record_range(args.format, record);
  const std::int64_t count = range.end - range.begin, length = args.format.length;
  const Unit unit = unit_of(largest(row + range.begin, count), layout.digits);
  PieceStart& start = reinterpret_cast<PieceStart*>(to)[record];
  start.unit = unit.unit;
  std::uint8_t* digits = reinterpret_cast<std::uint8_t*>(to + layout.digits_at) + record * layout.digits * length;
  // The digits of a piece with NaN or infinities are not used.
  const std::int64_t used = unit.factor > 0.0f ? count : 0;
  std::int32_t sums[kMaxDigits] = {};
  if (layout.digits == 1)
    write_digits<1>(row + range.begin, used, length, unit.factor, digits, sums);
  else
    write_digits<3>(row + range.begin, used, length, unit.factor, digits, sums);
  for (int d = 0; d < kMaxDigits; ++d) {
    if (args.format.has_zero_points)
      start.sums[d] = static_cast<float>(sums[d]);
    else
      start.starts[d] = -sums[d] * args.format.center;
  }
}

void weight_digits_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmWeightsArgs& args = *static_cast<const GemmWeightsArgs*>(raw_args);
  const float* a = static_cast<const float*>(buffers[0]);
  char* digits = static_cast<char*>(buffers[args.digits_at]);
  const std::int64_t records = weight_records(args.format);
  const WorkRange range = split_work(args.m * records, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t row = at / records;
    make_digits(args, a + row * args.format.k, at % records, digits + row * args.layout.row_bytes);
  }
}

// c plus the products of eight codes of 4 bits in each lane, `low` and `high` halves of bytes, with two quads of
// digits.
ENGINE_INLINE VecInt dot_halves(VecInt low, VecInt high, VecInt x_low, VecInt x_high, VecInt c) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return dot_bytes(high, x_high, dot_bytes(low, x_low, c));
#elif defined(__AVX512BW__)
  // At most 4 * 15 * 128: no sum of 16 bits saturates.
  const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16((__m512i)low, (__m512i)x_low),
                                         _mm512_maddubs_epi16((__m512i)high, (__m512i)x_high));
  return c + multiply_shorts((VecInt)pairs, VecInt{} + 0x00010001);
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16((__m256i)low, (__m256i)x_low),
                                         _mm256_maddubs_epi16((__m256i)high, (__m256i)x_high));
  return c + multiply_shorts((VecInt)pairs, VecInt{} + 0x00010001);
#elif defined(__aarch64__)
  return dot_signed(high, x_high, dot_signed(low, x_low, c));  // codes of 4 bits are positive as signed bytes, too
#else
  return dot_bytes(high, x_high, dot_bytes(low, x_low, c));
#endif
}

// The sums of kRows rows with one group of columns.
template <int kBits, int kDigits, bool kHasZeroPoints, int kRows>
void sum_group(const WeightsFormat& f, const std::uint8_t* w, const Row* rows, float* sums) {
  const std::int64_t records = weight_records(f), length = f.length, code_bytes = record_code_bytes(f);
  constexpr int kQuadsAtOnce = kBits == 4 ? 2 : 1;
  Vec y[kPairs][kRows][2] = {};
  const std::uint8_t* x[kRows];
  const PieceStart* start[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = rows[r].digits;
    start[r] = rows[r].starts;
  }
  for (std::int64_t record = 0; record < records; ++record) {
    const std::uint8_t* scales = w + code_bytes;
    const std::uint8_t* zero_points = scales + kWeightColumns * f.scale_bytes;
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      VecInt acc[kRows][2][kDigits];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int d = 0; d < kDigits; ++d)
          acc[r][0][d] = acc[r][1][d] = kHasZeroPoints ? VecInt{} : VecInt{} + start[r]->starts[d];
      const std::uint8_t* codes = w + p * 2 * kVectorBytes;
      for (std::int64_t i = 0; i < length; i += 4 * kQuadsAtOnce, codes += 4 * kWeightColumns) {
        __builtin_prefetch(codes + kAhead);
        if constexpr (kVectorBytes == 64) __builtin_prefetch(codes + kAhead + 64);
        const VecInt code[2] = {load_byte_quads(codes), load_byte_quads(codes + kVectorBytes)};
        if constexpr (kBits == 4) {
          VecInt low[2], high[2];
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) {
            low[v] = code[v] & 0x0f0f0f0f;
            high[v] = (VecInt)((VecBits)code[v] >> 4) & 0x0f0f0f0f;
          }
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
            for (int d = 0; d < kDigits; ++d) {
              const VecInt x_low = broadcast_byte_quad(x[r] + d * length + i);
              const VecInt x_high = broadcast_byte_quad(x[r] + d * length + i + 4);
#pragma GCC unroll 2
              for (int v = 0; v < 2; ++v) acc[r][v][d] = dot_halves(low[v], high[v], x_low, x_high, acc[r][v][d]);
            }
        } else {
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
            for (int d = 0; d < kDigits; ++d) {
              const VecInt quad = broadcast_byte_quad(x[r] + d * length + i);
#pragma GCC unroll 2
              for (int v = 0; v < 2; ++v) acc[r][v][d] = dot_bytes(code[v], quad, acc[r][v][d]);
            }
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int column = p * kPairLanes + v * kLanes;
        const Vec scale = load_scales(scales + column * f.scale_bytes, f.scale_bytes);
        const Vec zero_point = kHasZeroPoints ? load_bytes(zero_points + column, 0) : zero();
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          Vec total = zero();
#pragma GCC unroll 3
          for (int d = 0; d < kDigits; ++d) {
            Vec digit = to_floats(acc[r][v][d]);
            if constexpr (kHasZeroPoints) digit = fma(-zero_point, broadcast(start[r]->sums[d]), digit);
            total = d == 0 ? digit : fma(total, broadcast(256.0f), digit);
          }
          // In this order, no intermediate value overflows unless the result does: sums of codes times activations of
          // 1e36 are infinite.
          y[p][r][v] = fma(total * scale, broadcast(start[r]->unit), y[p][r][v]);
        }
      }
    }
    __builtin_prefetch(scales + kAhead);
    w = scales + kWeightColumns * (f.scale_bytes + f.has_zero_points);
    for (int r = 0; r < kRows; ++r) {
      x[r] += kDigits * length;
      ++start[r];
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p)
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) store(sums + r * kWeightColumns + p * kPairLanes + v * kLanes, y[p][r][v]);
}

using SumFn = void (*)(const WeightsFormat& f, const std::uint8_t* w, const Row* rows, float* sums);

template <int kBits, int kDigits, bool kHasZeroPoints>
SumFn pick_rows(std::int64_t rows) {
  static const SumFn table[kMaxRows] = {
      sum_group<kBits, kDigits, kHasZeroPoints, 1>,
#if defined(__AVX512F__) || defined(__ARM_FEATURE_DOTPROD)
      sum_group<kBits, kDigits, kHasZeroPoints, 2>,
      sum_group<kBits, kDigits, kHasZeroPoints, 3>,
      sum_group<kBits, kDigits, kHasZeroPoints, 4>,
#endif
  };
  return table[rows - 1];
}

template <int kBits, int kDigits>
SumFn pick_zero_points(const GemmWeightsArgs& args, std::int64_t rows) {
  return args.format.has_zero_points ? pick_rows<kBits, kDigits, true>(rows) : pick_rows<kBits, kDigits, false>(rows);
}

SumFn pick_sum(const GemmWeightsArgs& args, std::int64_t rows) {
  if (args.format.bits == 4)
    return args.layout.digits == 1 ? pick_zero_points<4, 1>(args, rows) : pick_zero_points<4, 3>(args, rows);
  return args.layout.digits == 1 ? pick_zero_points<8, 1>(args, rows) : pick_zero_points<8, 3>(args, rows);
}

// The sums of one row with one group in f32, as in the definition.
template <int kBits>
ENGINE_NOINLINE void sum_plainly(const WeightsFormat& f, const std::uint8_t* w, const float* x, float* sums) {
  const std::int64_t records = weight_records(f), bytes = record_bytes(f);
  for (int c = 0; c < kWeightColumns; c += kLanes) {
    Vec y = zero();
    for (std::int64_t record = 0; record < records; ++record) {
      const RecordColumns columns = record_columns(f, w + record * bytes, c);
      const WorkRange range = record_range(f, record);
      for (std::int64_t k = range.begin; k < range.end; ++k) {
        const std::int64_t at = k - range.begin;
        const VecInt quads = load_quads<kBits>(w + record * bytes, at, c);
        y = fma(broadcast(x[k]), dequantized<kBits>(quads, static_cast<int>(at % kRowsInQuad<kBits>), columns), y);
      }
    }
    store(sums + c, y);
  }
}

// Applies the epilogue to rows of sums of a group, and stores them.
ENGINE_NOINLINE void finish(const GemmWeightsArgs& args, std::int64_t rows, std::int64_t columns, float* sums,
                            const float* bias, const float* residual, float* c) {
  const EpilogueArgs& epilogue = args.epilogue;
  const bool is_after = residual && epilogue.residual_after;
  for (std::int64_t r = 0; r < rows; ++r, sums += kWeightColumns) {
    for (std::int64_t i = 0; i < columns; i += kLanes) {
      const std::int64_t count = min64(kLanes, columns - i);
      Vec value = load(sums + i);
      if (bias) value += load_partial(bias + i, count, zero());
      float added[kLanes];
      if (residual) {
        const Vec other = load_partial(residual + r * args.format.n + i, count, zero());
        if (is_after)
          store(added, other);
        else
          value += other;
      }
      store(sums + i, value);
      finish_column(epilogue, 1, sums + i, kLanes, is_after ? added : nullptr, kLanes);
      store_partial(c + r * args.format.n + i, load(sums + i), count);
    }
  }
}

struct Walk {
  const float *a, *bias, *residual;
  const std::uint8_t* w;
  const char* digits;
  float* c;
};

// One group of columns for rows [first, end).
void run_group(const GemmWeightsArgs& args, const Walk& walk, std::int64_t group, std::int64_t first,
               std::int64_t end) {
  const WeightsFormat& f = args.format;
  const std::int64_t column = group * kWeightColumns, columns = min64(kWeightColumns, f.n - column);
  const std::uint8_t* w = walk.w + group * weight_records(f) * record_bytes(f);
  alignas(64) float sums[kMaxRows * kWeightColumns];
  for (std::int64_t row = first; row < end; row += kMaxRows) {
    const std::int64_t count = min64(kMaxRows, end - row);
    Row rows[kMaxRows];
    for (std::int64_t r = 0; r < count; ++r) rows[r] = row_at(args.layout, walk.digits, row + r);
    pick_sum(args, count)(f, w, rows, sums);
    for (std::int64_t r = 0; r < count; ++r)
      if (sums[r * kWeightColumns] != sums[r * kWeightColumns])
        (f.bits == 4 ? sum_plainly<4> : sum_plainly<8>)(f, w, walk.a + (row + r) * f.k, sums + r * kWeightColumns);
    const std::int64_t at = row * f.n + column;
    finish(args, count, columns, sums, walk.bias ? walk.bias + column : nullptr,
           walk.residual ? walk.residual + at : nullptr, walk.c + at);
  }
}

// A sequence of pairs of a block of rows and a group of columns, which is divided evenly: the weights of a group stay
// in cache for all rows of the block, whose digits stay there for all groups.
void gemm_weights_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmWeightsArgs& args = *static_cast<const GemmWeightsArgs*>(raw_args);
  if (args.m * args.format.n == 0) return;
  Walk walk = {};
  walk.a = static_cast<const float*>(buffers[0]);
  walk.w = static_cast<const std::uint8_t*>(buffers[1]);
  int operand = 2;
  if (args.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.has_residual) walk.residual = static_cast<const float*>(buffers[operand++]);
  walk.c = static_cast<float*>(buffers[args.c_at]);
  const std::int64_t groups = weight_groups(args.format);
  const std::int64_t blocks = (args.m + args.row_block - 1) / args.row_block;
  const WorkRange range = split_work(blocks * groups, context.worker, context.workers);
  if (range.begin == range.end) return;
  if (args.digits_at > 0) {
    walk.digits = static_cast<const char*>(buffers[args.digits_at]);
  } else {
    char* digits = static_cast<char*>(context.scratch);
    walk.digits = digits;
    for (std::int64_t row = 0; row < args.m; ++row)
      for (std::int64_t record = 0; record < weight_records(args.format); ++record)
        make_digits(args, walk.a + row * args.format.k, record, digits + row * args.layout.row_bytes);
  }
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t first = at / groups * args.row_block;
    run_group(args, walk, at % groups, first, min64(first + args.row_block, args.m));
  }
}

}  // namespace

extern const KernelEntry gemm_weights_kernels[] = {{"gemm_weights_int8", gemm_weights_int8, &kTraits},
                                                   {"weight_digits_int8", weight_digits_int8, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
