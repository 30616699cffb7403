// reduce_integer: reductions of integers and of f64; see reduce.hpp. Operands: `from` and `to`; element alignment;
// output and input must not overlap. Split over outputs, or tiles of 64 adjacent outputs.
//
// Integer sums wrap; integer means round towards zero. Results of f64, and of u64, in their own type.
#include <cmath>

#include "kernels/reduce_walk.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

template <class T>
struct Limits;
#define ENGINE_LIMITS(type, low, high)     \
  template <>                              \
  struct Limits<type> {                    \
    static constexpr type kLowest = low;   \
    static constexpr type kHighest = high; \
  };
ENGINE_LIMITS(std::int32_t, INT32_MIN, INT32_MAX)
ENGINE_LIMITS(std::int64_t, INT64_MIN, INT64_MAX)
ENGINE_LIMITS(std::uint32_t, 0, UINT32_MAX)
ENGINE_LIMITS(std::uint8_t, 0, UINT8_MAX)
ENGINE_LIMITS(std::int8_t, INT8_MIN, INT8_MAX)
ENGINE_LIMITS(bool, false, true)
#undef ENGINE_LIMITS

// Sums and products modulo 2^64, whose low bits are the results in any narrower type.
template <class T, ReduceMap kMap>
ENGINE_INLINE std::int64_t take_integer(std::int64_t acc, T x) {
  const auto a = static_cast<std::uint64_t>(acc), b = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
  if constexpr (kMap == ReduceMap::kMax) return x > acc ? x : acc;
  if constexpr (kMap == ReduceMap::kMin) return x < acc ? x : acc;
  if constexpr (kMap == ReduceMap::kMultiply) return static_cast<std::int64_t>(a * b);
  if constexpr (kMap == ReduceMap::kAddAbs) return static_cast<std::int64_t>(x < 0 ? a - b : a + b);
  if constexpr (kMap == ReduceMap::kAddSquare) return static_cast<std::int64_t>(a + b * b);
  return static_cast<std::int64_t>(a + b);
}

template <class T, ReduceMap kMap>
void reduce_integers(const ReduceArgs& args, void* const* buffers, WorkRange range) {
  const T* x = static_cast<const T*>(buffers[args.from]);
  T* y = static_cast<T*>(buffers[args.to]);
  constexpr std::int64_t kStart = kMap == ReduceMap::kMax        ? Limits<T>::kLowest
                                  : kMap == ReduceMap::kMin      ? Limits<T>::kHighest
                                  : kMap == ReduceMap::kMultiply ? 1
                                                                 : 0;
  const std::int64_t tiles = (args.columns + kReduceTile - 1) / kReduceTile;
  const Share share = make_share(args, 0);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / tiles, column = i % tiles * kReduceTile;
    const std::int64_t width = args.columns - column < kReduceTile ? args.columns - column : kReduceTile;
    std::int64_t acc[kReduceTile];
    for (std::int64_t& each : acc) each = kStart;
    Odometer output, line;
    output.start(args.kept, args.kept.rank, row);
    line.start(share.dims, share.dims.rank - 1, 0);
    for (std::int64_t l = 0; l < share.lines; ++l, line.next()) {
      const T* at = x + output.offset + line.offset + column;
      for (std::int64_t r = 0; r < share.count; ++r, at += share.stride)
        for (std::int64_t c = 0; c < width; ++c) acc[c] = take_integer<T, kMap>(acc[c], at[c]);
    }
    for (std::int64_t c = 0; c < width; ++c) {
      if (args.finish == ReduceFinish::kDivide) acc[c] = args.count == 0 ? 0 : acc[c] / args.count;
      y[row * args.columns + column + c] = static_cast<T>(acc[c]);
    }
  }
}

template <class T>
void reduce_integers(const ReduceArgs& args, void* const* buffers, WorkRange range) {
  if (args.map == ReduceMap::kMax) return reduce_integers<T, ReduceMap::kMax>(args, buffers, range);
  if (args.map == ReduceMap::kMin) return reduce_integers<T, ReduceMap::kMin>(args, buffers, range);
  if constexpr (sizeof(T) >= 4) {
    if (args.map == ReduceMap::kAdd) return reduce_integers<T, ReduceMap::kAdd>(args, buffers, range);
    if (args.map == ReduceMap::kAddAbs) return reduce_integers<T, ReduceMap::kAddAbs>(args, buffers, range);
    if (args.map == ReduceMap::kAddSquare) return reduce_integers<T, ReduceMap::kAddSquare>(args, buffers, range);
    if (args.map == ReduceMap::kMultiply) return reduce_integers<T, ReduceMap::kMultiply>(args, buffers, range);
  }
}

// Results of f64, and of u64, in their own type; sums of f64 in eight interleaved parts.
template <class T, ReduceMap kMap>
ENGINE_INLINE T take_wide(T acc, T x, T shift) {
  if constexpr (kMap == ReduceMap::kMax) return x > acc || x != x ? x : acc;
  if constexpr (kMap == ReduceMap::kMin) return x < acc || x != x ? x : acc;
  if constexpr (kMap == ReduceMap::kMultiply) return acc * x;
  if constexpr (kMap == ReduceMap::kAddAbs) return acc + (x < 0 ? T(0) - x : x);
  if constexpr (kMap == ReduceMap::kAddSquare) return acc + x * x;
  if constexpr (kMap == ReduceMap::kLogAddExp)
    return acc + static_cast<T>(__builtin_exp(static_cast<double>(x - shift)));
  return acc + x;
}

template <class T>
constexpr T wide_start(ReduceMap map) {
  constexpr bool kIsReal = static_cast<T>(0.5) != 0;
  if (map == ReduceMap::kMultiply) return 1;
  if (map == ReduceMap::kMax) return kIsReal ? static_cast<T>(-__builtin_inf()) : T(0);
  if (map == ReduceMap::kMin) return kIsReal ? static_cast<T>(__builtin_inf()) : static_cast<T>(UINT64_MAX);
  return 0;
}

constexpr int kWideParts = 8;

typedef double WideVec __attribute__((vector_size(kVectorBytes)));
constexpr int kWideLanes = kVectorBytes / sizeof(double);

// The extremes of adjacent elements, in parts; returns how many were taken. Compilers make a branch of each comparison
// in an unrolled loop over the parts, and it is mispredicted in short lines.
template <ReduceMap kMap>
ENGINE_INLINE std::int64_t take_extremes(const double* x, std::int64_t count, double* parts) {
  WideVec best[kWideParts / kWideLanes], next;
  __builtin_memcpy(best, parts, sizeof best);
  std::int64_t r = 0;
  for (; r + kWideParts <= count; r += kWideParts)
    for (int v = 0; v < kWideParts / kWideLanes; ++v) {
      __builtin_memcpy(&next, x + r + v * kWideLanes, sizeof next);
      const auto is_better = kMap == ReduceMap::kMax ? next > best[v] : next < best[v];
      best[v] = (is_better | (next != next)) ? next : best[v];
    }
  __builtin_memcpy(parts, best, sizeof best);
  return r;
}

// One output: its lines, each in interleaved parts.
template <class T, ReduceMap kMap>
T reduce_wide_row(const Share& share, const T* x, T shift) {
  constexpr ReduceMap kJoin =
      kMap == ReduceMap::kMax || kMap == ReduceMap::kMin || kMap == ReduceMap::kMultiply ? kMap : ReduceMap::kAdd;
  T parts[kWideParts];
  for (T& part : parts) part = wide_start<T>(kMap);
  Odometer line;
  line.start(share.dims, share.dims.rank - 1, 0);
  for (std::int64_t l = 0; l < share.lines; ++l, line.next()) {
    const T* at = x + line.offset;
    std::int64_t r = 0;
    if constexpr (static_cast<T>(0.5) != 0 && (kMap == ReduceMap::kMax || kMap == ReduceMap::kMin)) {
      if (share.stride == 1) r = take_extremes<kMap>(at, share.count, parts);
    }
    for (; r + kWideParts <= share.count; r += kWideParts)
      for (int p = 0; p < kWideParts; ++p) parts[p] = take_wide<T, kMap>(parts[p], at[(r + p) * share.stride], shift);
    for (; r < share.count; ++r) parts[0] = take_wide<T, kMap>(parts[0], at[r * share.stride], shift);
  }
  for (int half = kWideParts / 2; half > 0; half /= 2)
    for (int p = 0; p < half; ++p) parts[p] = take_wide<T, kJoin>(parts[p], parts[p + half], 0);
  return parts[0];
}

ENGINE_INLINE double finish_wide(const ReduceArgs& args, double value) {
  return finished(args, value);
}
ENGINE_INLINE std::uint64_t finish_wide(const ReduceArgs& args, std::uint64_t value) {
  if (args.finish != ReduceFinish::kDivide) return value;
  return args.count == 0 ? 0 : value / static_cast<std::uint64_t>(args.count);
}

template <class T, ReduceMap kMap>
void reduce_wide(const ReduceArgs& args, void* const* buffers, WorkRange range) {
  const T* x = static_cast<const T*>(buffers[args.from]);
  T* y = static_cast<T*>(buffers[args.to]);
  const std::int64_t tiles = (args.columns + kReduceTile - 1) / kReduceTile;
  const Share share = make_share(args, 0);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / tiles, column = i % tiles * kReduceTile;
    const std::int64_t width = args.columns - column < kReduceTile ? args.columns - column : kReduceTile;
    Odometer output;
    output.start(args.kept, args.kept.rank, row);
    const T* from = x + output.offset + column;
    T* to = y + row * args.columns + column;
    if (!args.has_columns || kMap == ReduceMap::kLogAddExp) {
      for (std::int64_t c = 0; c < width; ++c) {
        T shift = 0;
        if constexpr (kMap == ReduceMap::kLogAddExp) {
          shift = reduce_wide_row<T, ReduceMap::kMax>(share, from + c, 0);
          if (!(shift - shift == 0)) shift = 0;
          const double sum = static_cast<double>(reduce_wide_row<T, kMap>(share, from + c, shift));
          to[c] = static_cast<T>(log(sum)) + shift;
        } else {
          to[c] = finish_wide(args, reduce_wide_row<T, kMap>(share, from + c, shift));
        }
      }
      continue;
    }
    T acc[kReduceTile];
    for (T& each : acc) each = wide_start<T>(kMap);
    Odometer line;
    line.start(share.dims, share.dims.rank - 1, 0);
    for (std::int64_t l = 0; l < share.lines; ++l, line.next()) {
      const T* at = from + line.offset;
      for (std::int64_t r = 0; r < share.count; ++r, at += share.stride)
        if (width == kReduceTile)  // a known number of columns stays in registers
          for (std::int64_t c = 0; c < kReduceTile; ++c) acc[c] = take_wide<T, kMap>(acc[c], at[c], 0);
        else
          for (std::int64_t c = 0; c < width; ++c) acc[c] = take_wide<T, kMap>(acc[c], at[c], 0);
    }
    for (std::int64_t c = 0; c < width; ++c) to[c] = finish_wide(args, acc[c]);
  }
}

template <class T>
void reduce_wide(const ReduceArgs& args, void* const* buffers, WorkRange range) {
  if (args.map == ReduceMap::kAdd) return reduce_wide<T, ReduceMap::kAdd>(args, buffers, range);
  if (args.map == ReduceMap::kAddAbs) return reduce_wide<T, ReduceMap::kAddAbs>(args, buffers, range);
  if (args.map == ReduceMap::kAddSquare) return reduce_wide<T, ReduceMap::kAddSquare>(args, buffers, range);
  if (args.map == ReduceMap::kMultiply) return reduce_wide<T, ReduceMap::kMultiply>(args, buffers, range);
  if (args.map == ReduceMap::kMax) return reduce_wide<T, ReduceMap::kMax>(args, buffers, range);
  if (args.map == ReduceMap::kMin) return reduce_wide<T, ReduceMap::kMin>(args, buffers, range);
  if constexpr (static_cast<T>(0.5) != 0)
    if (args.map == ReduceMap::kLogAddExp) return reduce_wide<T, ReduceMap::kLogAddExp>(args, buffers, range);
}

void reduce_integer(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ReduceArgs& args = *static_cast<const ReduceArgs*>(raw_args);
  const WorkRange range = items(args, context);
  switch (args.type) {
    case ElementCode::kI32:
      return reduce_integers<std::int32_t>(args, buffers, range);
    case ElementCode::kI64:
      return reduce_integers<std::int64_t>(args, buffers, range);
    case ElementCode::kU32:
      return reduce_integers<std::uint32_t>(args, buffers, range);
    case ElementCode::kU64:
      return reduce_wide<std::uint64_t>(args, buffers, range);
    case ElementCode::kF64:
      return reduce_wide<double>(args, buffers, range);
    case ElementCode::kU8:
      return reduce_integers<std::uint8_t>(args, buffers, range);
    case ElementCode::kI8:
      return reduce_integers<std::int8_t>(args, buffers, range);
    case ElementCode::kBool:
      return reduce_integers<bool>(args, buffers, range);
    default:  // prepare accepts no other
      break;
  }
}

}  // namespace

extern const KernelEntry reduce_integer_kernels[] = {{"reduce_integer", reduce_integer, nullptr},
                                                     {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
