// gemm_few_bf16: up to four rows of A times all of B, which is read once and in order. Pairs of bf16 are widened by
// shifts and multiplied in f32, which every CPU does faster than its memory delivers them: AMX's tiles are loaded whole
// for a single row, and products of pairs take twice the time of f32 on some CPUs (rate_bf16.hpp). A is rounded to bf16
// first, as the other kernels do, so that results differ only by the rounding of sums.
//
// C must not overlap A or B. Element alignment. A row of C is not accessed beyond column N.
#include "kernels/gemm_few.hpp"

#include "kernels/activation.hpp"
#include "simd/denormals.hpp"
#include "simd/partial.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// The sums that stay in registers beside weights.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 16;
#else
constexpr int kSums = 8;
#endif
// Pairs of depths in one pass of the loop.
constexpr int kPairs = 4;
// How far ahead of their use weights are prefetched, in bytes. The hardware's prefetcher is late where each core reads
// as fast as memory delivers.
constexpr std::int64_t kAhead = 1024;

// The weights of a tile of columns: `runs` times, for each half of the tile, `pairs` pairs of depths.
struct Weights {
  const Bf16* at;
  std::int64_t runs, pairs;
};

// Rows of A, `step` floats apart.
struct FewRows {
  const float* at;
  std::int64_t step;
};

template <int kRows, int kVectors, int kChains>
ENGINE_ALWAYS_INLINE void multiply_pair(const Bf16* w, const FewRows& x, std::int64_t depth, int pair,
                                        Vec (&acc)[kChains][kRows][kVectors]) {
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const VecInt weight = load_pairs(w + v * kLanes * 2);
    const Vec first = (Vec)(weight << 16), second = (Vec)(weight & static_cast<std::int32_t>(0xffff0000));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const float* row = x.at + r * x.step + depth;
      Vec& sum = acc[2 * pair % kChains][r][v];
      sum = fma(first, broadcast(row[0]), sum);
      Vec& other = acc[(2 * pair + 1) % kChains][r][v];
      other = fma(second, broadcast(row[1]), other);
    }
  }
}

// The sums of kRows rows with a tile of columns, in kHalves halves of kVectors vectors: to [kRows][kHalves][kVectors].
template <int kRows, int kVectors, int kHalves>
void sum_tile(const Weights& weights, const FewRows& x, float* to) {
  // A sum waits for the one before it, so one sum is computed in several chains if there are registers for them.
  constexpr int kOwn = kRows * kVectors * kHalves, kChains = 4 * kOwn <= kSums ? 4 : 2 * kOwn <= kSums ? 2 : 1;
  constexpr std::int64_t kPair = kVectors * kLanes * 2;
  Vec acc[kHalves][kChains][kRows][kVectors] = {};
  const Bf16* w = weights.at;
  for (std::int64_t run = 0; run < weights.runs; ++run) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      std::int64_t depth = run * weights.pairs * 2;
      std::int64_t pair = 0;
      for (; pair + kPairs <= weights.pairs; pair += kPairs, depth += 2 * kPairs, w += kPairs * kPair) {
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; ++i) {
          if (i * kPair % 32 == 0)
            for (std::int64_t line = 0; line < kPair; line += 32)
              __builtin_prefetch(reinterpret_cast<const char*>(w + i * kPair + line) + kAhead, 0, 2);
          multiply_pair(w + i * kPair, x, depth + 2 * i, i, acc[h]);
        }
      }
      for (; pair < weights.pairs; ++pair, depth += 2, w += kPair) multiply_pair(w, x, depth, 0, acc[h]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Vec sum = acc[h][0][r][v];
#pragma GCC unroll 4
        for (int chain = 1; chain < kChains; ++chain) sum += acc[h][chain][r][v];
        store(to + ((r * kHalves + h) * kVectors + v) * kLanes, sum);
      }
}

using SumTileFn = void (*)(const Weights& weights, const FewRows& x, float* to);

template <int kVectors, int kHalves>
SumTileFn pick_rows(std::int64_t rows) {
  static const SumTileFn table[] = {sum_tile<1, kVectors, kHalves>, sum_tile<2, kVectors, kHalves>,
                                    sum_tile<3, kVectors, kHalves>, sum_tile<4, kVectors, kHalves>};
  static_assert(kFewRows == 4, "a kernel for each number of rows");
  return table[rows - 1];
}

SumTileFn pick(const GemmFewArgs& args, std::int64_t width) {
  if (args.is_for_amx) return pick_rows<kVectorsPerBlock, 2>(args.gemm.m);
  return width > kLanes ? pick_rows<2, 1>(args.gemm.m) : pick_rows<1, 1>(args.gemm.m);
}

// A, rounded to bf16; values beyond the end of a row are zero.
template <class Source>
void read_rows(const GemmBf16Args& args, const Source* a, float* to) {
  for (std::int64_t r = 0; r < args.m; ++r, a += args.a.row)
    for (std::int64_t k = 0; k < few_row(args.k); k += kLanes, to += kLanes) {
      Source padded[kLanes] = {};
      Bf16 halves[kLanes];
      const bool is_whole = k + kLanes <= args.k;
      if (!is_whole)
        for (std::int64_t i = k; i < args.k; ++i) padded[i - k] = a[i];
      store(halves, load(is_whole ? a + k : padded));
      store(to, load(halves));
    }
}

struct FewOperands {
  const float *bias, *scale;
  SizedPointer<const char> residual;
  SizedPointer<char> c;
};

FewOperands operands_of(const GemmBf16Args& args, void* const* buffers) {
  FewOperands operands = {};
  int operand = 2;
  if (args.operands.has_bias) operands.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) operands.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual)
    operands.residual = {static_cast<const char*>(buffers[operand++]), args.residual.element_bytes};
  operands.c = {static_cast<char*>(buffers[args.c_at]), args.c.element_bytes};
  return operands;
}

// The first `count` lanes in the type of memory.
ENGINE_INLINE Vec load_either(SizedPointer<const char> from, std::int64_t count) {
  if (from.element_bytes == 4) return load_partial(reinterpret_cast<const float*>(from.data), count, zero());
  const Bf16* halves = reinterpret_cast<const Bf16*>(from.data);
  if (count == kLanes) return load(halves);
  Bf16 padded[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = halves[i];
  return load(padded);
}
ENGINE_INLINE void store_either(SizedPointer<char> to, Vec value, std::int64_t count) {
  if (to.element_bytes == 4) return store_partial(reinterpret_cast<float*>(to.data), value, count);
  Bf16* halves = reinterpret_cast<Bf16*>(to.data);
  if (count == kLanes) return store(halves, value);
  Bf16 rounded[kLanes];
  store(rounded, value);
  for (std::int64_t i = 0; i < count; ++i) halves[i] = rounded[i];
}

// Applies the epilogue to the sums of a tile, [m][width], and stores them.
ENGINE_NOINLINE void finish_sums(const GemmBf16Args& args, const FewOperands& operands, std::int64_t column,
                                 std::int64_t width, const float* sums) {
  const EpilogueArgs& epilogue = args.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  const bool is_after = operands.residual.data && epilogue.residual_after;
  const Vec low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  const Vec high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  for (std::int64_t i = 0; i < width && column + i < args.n; i += kLanes) {
    const std::int64_t count = min64(kLanes, args.n - column - i);
    const Vec scale = operands.scale ? load(operands.scale + column + i) : broadcast(1.0f);
    const Vec bias = operands.bias ? load(operands.bias + column + i) : zero();
    for (std::int64_t r = 0; r < args.m; ++r) {
      Vec value = load(sums + r * width + i);
      if (operands.scale)
        value = fma(value, scale, bias);
      else if (operands.bias)
        value += bias;
      Vec residual = zero();
      if (operands.residual.data)
        residual = load_either(operands.residual + (r * args.residual.row + column + i), count);
      if (operands.residual.data && !is_after) value += residual;
      value = min(high, max(low, value));
      if (!is_clip || is_after) {
        float lanes[kLanes], added[kLanes];
        store(lanes, value);
        store(added, residual);
        finish_column(epilogue, 1, lanes, kLanes, is_after ? added : nullptr, kLanes);
        value = load(lanes);
      }
      store_either(operands.c + (r * args.c.row + column + i), value, count);
    }
  }
}

// Split over tiles of columns.
void gemm_few_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GemmFewArgs& args = *static_cast<const GemmFewArgs*>(raw_args);
  const GemmBf16Args& gemm = args.gemm;
  const PackArgs& pack = gemm.pack;
  const std::int64_t tiles = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  const WorkRange range = split_work(tiles, context.worker, context.workers);
  if (range.begin == range.end) return;
  const NoDenormals guard;
  const FewOperands operands = operands_of(gemm, buffers);
  float* sums = static_cast<float*>(context.scratch);
  float* rows = sums + kFewRows * kMaxFewColumns;
  if (gemm.a.element_bytes == 2)
    read_rows(gemm, static_cast<const Bf16*>(buffers[0]), rows);
  else
    read_rows(gemm, static_cast<const float*>(buffers[0]), rows);
  Weights weights = {};
  weights.runs = args.is_for_amx ? pack.blocks : 1;
  weights.pairs =
      args.is_for_amx ? pack.depth / 2 : std::int64_t{pack.depth / 2} * (pack.blocks - 1) + (pack.last_depth + 1) / 2;
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t column = t * pack.tile_channels;
    const std::int64_t width = t == tiles - 1 ? pack.tail_channels : pack.tile_channels;
    weights.at = static_cast<const Bf16*>(buffers[1]) + column * 2 * weights.runs * weights.pairs;
    pick(args, width)(weights, {rows, few_row(gemm.k)}, sums);
    finish_sums(gemm, operands, column, width, sums);
  }
}

// The lanes of a vector, which tiles of columns consist of.
const std::int32_t kTraits = kLanes;

}  // namespace

extern const KernelEntry gemm_few_kernels[] = {{"gemm_few_bf16", gemm_few_bf16, &kTraits}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
