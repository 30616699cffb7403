// reduce_f32: see reduce.hpp. Operands: `from` and `to`; element alignment; output and input must not overlap. Split
// over outputs, or tiles of 64 adjacent outputs.
//
// Sums: vectors of partial sums over at most 64 steps, whose totals are added in f64, or with compensation, so the
// error grows at most logarithmically with the length.
#include <cmath>

#include "kernels/reduce_walk.hpp"
#include "simd/partial.hpp"
#include "simd/root.hpp"
#include "simd/transpose.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr std::int64_t kRun = 64;  // steps after which a partial sum is added to the total

constexpr bool is_sum(ReduceMap map) {
  return map == ReduceMap::kAdd || map == ReduceMap::kAddAbs || map == ReduceMap::kAddSquare ||
         map == ReduceMap::kLogAddExp;
}

constexpr float neutral(ReduceMap map) {
  return map == ReduceMap::kMax        ? -__builtin_inff()
         : map == ReduceMap::kMin      ? __builtin_inff()
         : map == ReduceMap::kMultiply ? 1.0f
                                       : 0.0f;
}

template <ReduceMap kMap>
ENGINE_INLINE Vec combine(Vec a, Vec b) {
  if constexpr (kMap == ReduceMap::kMax) return ((b > a) | (b != b)) ? b : a;
  if constexpr (kMap == ReduceMap::kMin) return ((b < a) | (b != b)) ? b : a;
  if constexpr (kMap == ReduceMap::kMultiply) return a * b;
  return a + b;
}

template <ReduceMap kMap>
ENGINE_INLINE Vec take(Vec acc, Vec x, Vec shift) {
  if constexpr (kMap == ReduceMap::kAddAbs) return acc + abs(x);
  if constexpr (kMap == ReduceMap::kAddSquare) return fma(x, x, acc);
  if constexpr (kMap == ReduceMap::kLogAddExp) return acc + exp(x - shift);
  return combine<kMap>(acc, x);
}

// The neutral element, with which unused lanes are filled.
template <ReduceMap kMap>
ENGINE_INLINE Vec blank() {
  return broadcast(kMap == ReduceMap::kLogAddExp ? -__builtin_inff() : neutral(kMap));
}

template <ReduceMap kMap>
ENGINE_INLINE double fold(Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  double total = lanes[0];
  for (int i = 1; i < kLanes; ++i) {
    const double value = lanes[i];
    if constexpr (kMap == ReduceMap::kMax)
      total = value > total || value != value ? value : total;
    else if constexpr (kMap == ReduceMap::kMin)
      total = value < total || value != value ? value : total;
    else if constexpr (kMap == ReduceMap::kMultiply)
      total *= value;
    else
      total += value;
  }
  return total;
}

template <ReduceMap kMap>
ENGINE_INLINE double join(double total, double value) {
  if constexpr (kMap == ReduceMap::kMax) return value > total || value != value ? value : total;
  if constexpr (kMap == ReduceMap::kMin) return value < total || value != value ? value : total;
  if constexpr (kMap == ReduceMap::kMultiply) return total * value;
  return total + value;
}

constexpr int kStep = 4 * kLanes;

// Adjacent elements, at most kRun * kStep: partial results in each lane.
template <ReduceMap kMap>
ENGINE_INLINE Vec reduce_run(const float* x, std::int64_t count, Vec shift) {
  Vec acc[4];
  for (Vec& each : acc) each = broadcast(neutral(kMap));
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
    for (int v = 0; v < 4; ++v) acc[v] = take<kMap>(acc[v], load(x + i + v * kLanes), shift);
  for (; i + kLanes <= count; i += kLanes) acc[0] = take<kMap>(acc[0], load(x + i), shift);
  if (i < count) acc[1] = take<kMap>(acc[1], load_partial(x + i, count - i, blank<kMap>()), shift);
  return combine<kMap>(combine<kMap>(acc[0], acc[1]), combine<kMap>(acc[2], acc[3]));
}

template <ReduceMap kMap>
double reduce_line(const float* x, std::int64_t count, float shift, double total) {
  for (; count > 0; x += kRun * kStep, count -= kRun * kStep)
    total = join<kMap>(total,
                       fold<kMap>(reduce_run<kMap>(x, count < kRun * kStep ? count : kRun * kStep, broadcast(shift))));
  return total;
}

template <ReduceMap kMap>
double reduce_lines(const Share& share, const float* x, float shift) {
  double total = static_cast<double>(neutral(kMap));
  Odometer line;
  line.start(share.dims, share.dims.rank - 1, 0);
  for (std::int64_t i = 0; i < share.lines; ++i, line.next())
    total = reduce_line<kMap>(x + share.begin + line.offset, share.count, shift, total);
  return total;
}

// Up to as many rows as a vector has lanes, each a single run: one transposition combines their partial results into a
// vector.
template <ReduceMap kMap>
Vec reduce_square(const float* const* rows, std::int64_t valid, std::int64_t count, Vec shifts) {
  Vec partial[kLanes] = {};
  for (int r = 0; r < valid; ++r) partial[r] = reduce_run<kMap>(rows[r], count, broadcast(shifts[r]));
  transpose_square(partial);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int r = 0; r < half; ++r) partial[r] = combine<kMap>(partial[r], partial[r + half]);
  return partial[0];
}

ENGINE_INLINE Vec finite_or_zero(Vec x) {
  return x - x == 0.0f ? x : zero();
}

template <ReduceMap kMap>
void reduce_short_rows(const ReduceArgs& args, const float* x, float* y, WorkRange range) {
  Odometer output;
  output.start(args.kept, args.kept.rank, range.begin);
  const std::int64_t count = args.reduced.size[0];
  for (std::int64_t i = range.begin; i < range.end; i += kLanes) {
    const std::int64_t valid = range.end - i < kLanes ? range.end - i : kLanes;
    const float* rows[kLanes];
    for (int r = 0; r < valid; ++r, output.next()) rows[r] = x + output.offset;
    Vec shifts = zero();
    if constexpr (kMap == ReduceMap::kLogAddExp)
      shifts = finite_or_zero(reduce_square<ReduceMap::kMax>(rows, valid, count, shifts));
    Vec totals = reduce_square<kMap>(rows, valid, count, shifts);
    if (args.finish == ReduceFinish::kDivide) totals = totals / static_cast<float>(args.count);
    if (args.finish == ReduceFinish::kSquareRoot) totals = square_root(totals);
    if (args.finish == ReduceFinish::kLog || kMap == ReduceMap::kLogAddExp)
      for (int l = 0; l < valid; ++l) totals[l] = logf(totals[l]) + shifts[l];
    store_partial(y + i, totals, valid);
  }
}

template <ReduceMap kMap>
void reduce_rows(const ReduceArgs& args, const float* x, float* y, WorkRange range) {
  Odometer output;
  output.start(args.kept, args.kept.rank, range.begin / args.parts);
  std::int64_t part = range.begin % args.parts;
  Share share = make_share(args, part);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    if constexpr (kMap == ReduceMap::kLogAddExp) {
      const double most = reduce_lines<ReduceMap::kMax>(share, x + output.offset, 0.0f);
      const double shift = most - most == 0.0 ? most : 0.0;
      y[i] = static_cast<float>(log(reduce_lines<kMap>(share, x + output.offset, static_cast<float>(shift))) + shift);
    } else {
      y[i] = static_cast<float>(finished(args, reduce_lines<kMap>(share, x + output.offset, 0.0f)));
    }
    if (++part == args.parts) {
      part = 0;
      output.next();
    }
    if (args.parts > 1) share = make_share(args, part);
  }
}

// A tile of columns: totals[v] for `vectors` vectors, the last of which has `tail` lanes.
struct Columns {
  const float* x;
  int vectors;
  std::int64_t tail;  // kLanes: all
};

ENGINE_INLINE Vec load_column(const Columns& columns, const float* at, int v, Vec otherwise) {
  const bool is_partial = v == columns.vectors - 1 && columns.tail < kLanes;
  return is_partial ? load_partial(at, columns.tail, otherwise) : load(at);
}

constexpr int kTileVectors = static_cast<int>(kReduceTile) / kLanes;
constexpr int kGroup = 4;  // vectors whose sums stay in registers

// total += part, with the rounding errors kept in `lost`, which stays finite so that infinite sums stay infinite.
ENGINE_INLINE void add_compensated(Vec& total, Vec& lost, Vec part) {
  const Vec corrected = part - lost;
  const Vec sum = total + corrected;
  const Vec error = (sum - total) - corrected;
  lost = error - error == 0.0f ? error : zero();
  total = sum;
}

template <ReduceMap kMap>
void reduce_group(const Columns& columns, const Share& share, int first, int count, const Vec* shifts, Vec* totals) {
  Vec total[kGroup], lost[kGroup], acc[kGroup];
  for (int v = 0; v < kGroup; ++v) {
    total[v] = broadcast(neutral(kMap));
    lost[v] = zero();
  }
  Odometer line;
  line.start(share.dims, share.dims.rank - 1, 0);
  for (std::int64_t i = 0; i < share.lines; ++i, line.next()) {
    const float* x = columns.x + share.begin + line.offset + first * kLanes;
    for (std::int64_t done = 0; done < share.count; done += kRun) {
      const std::int64_t run = share.count - done < kRun ? share.count - done : kRun;
      for (Vec& each : acc) each = broadcast(neutral(kMap));
      if (count == kGroup && (first + kGroup < columns.vectors || columns.tail == kLanes)) {
        for (std::int64_t r = 0; r < run; ++r, x += share.stride)
          for (int v = 0; v < kGroup; ++v) acc[v] = take<kMap>(acc[v], load(x + v * kLanes), shifts[first + v]);
      } else {
        for (std::int64_t r = 0; r < run; ++r, x += share.stride)
          for (int v = 0; v < count; ++v)
            acc[v] =
                take<kMap>(acc[v], load_column(columns, x + v * kLanes, first + v, blank<kMap>()), shifts[first + v]);
      }
      for (int v = 0; v < kGroup; ++v) {
        if constexpr (is_sum(kMap))
          add_compensated(total[v], lost[v], acc[v]);
        else
          total[v] = combine<kMap>(total[v], acc[v]);
      }
    }
  }
  for (int v = 0; v < count; ++v) totals[first + v] = total[v];
}

template <ReduceMap kMap>
void reduce_tile(const Columns& columns, const Share& share, const Vec* shifts, Vec* totals) {
  for (int first = 0; first < columns.vectors; first += kGroup) {
    const int rest = columns.vectors - first;
    reduce_group<kMap>(columns, share, first, rest < kGroup ? rest : kGroup, shifts, totals);
  }
}

template <ReduceMap kMap>
void reduce_columns(const ReduceArgs& args, const float* x, float* y, WorkRange range) {
  const std::int64_t tiles = (args.columns + kReduceTile - 1) / kReduceTile;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / tiles, column = i % tiles * kReduceTile;
    Odometer output;
    output.start(args.kept, args.kept.rank, row / args.parts);
    const Share share = make_share(args, row % args.parts);
    const std::int64_t width = args.columns - column < kReduceTile ? args.columns - column : kReduceTile;
    const int vectors = static_cast<int>((width + kLanes - 1) / kLanes);
    const Columns columns = {x + output.offset + column, vectors, width - (vectors - 1) * kLanes};
    Vec shifts[kTileVectors] = {}, totals[kTileVectors];
    if constexpr (kMap == ReduceMap::kLogAddExp) {
      reduce_tile<ReduceMap::kMax>(columns, share, shifts, totals);
      for (int v = 0; v < vectors; ++v) shifts[v] = finite_or_zero(totals[v]);
    }
    reduce_tile<kMap>(columns, share, shifts, totals);
    float* to = y + row * args.columns + column;
    const bool is_plain = args.finish == ReduceFinish::kNone && kMap != ReduceMap::kLogAddExp;
    for (int v = 0; v < vectors; ++v) {
      if (!is_plain) {
        for (int l = 0; l < kLanes; ++l) {
          const double value = static_cast<double>(totals[v][l]);
          totals[v][l] = static_cast<float>(
              kMap == ReduceMap::kLogAddExp ? log(value) + static_cast<double>(shifts[v][l]) : finished(args, value));
        }
      }
      if (v == vectors - 1)
        store_partial(to + v * kLanes, totals[v], columns.tail);
      else
        store(to + v * kLanes, totals[v]);
    }
  }
}

template <ReduceMap kMap>
void reduce(const ReduceArgs& args, void* const* buffers, WorkRange range) {
  const float* x = static_cast<const float*>(buffers[args.from]);
  float* y = static_cast<float*>(buffers[args.to]);
  if (range.end <= range.begin) return;
  if (args.has_columns) return reduce_columns<kMap>(args, x, y, range);
  const bool is_short = args.parts == 1 && args.reduced.rank == 1 && args.reduced.size[0] <= kRun * kStep;
  is_short ? reduce_short_rows<kMap>(args, x, y, range) : reduce_rows<kMap>(args, x, y, range);
}

void reduce_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ReduceArgs& args = *static_cast<const ReduceArgs*>(raw_args);
  const WorkRange range = items(args, context);
  switch (args.map) {
    case ReduceMap::kAdd:
      return reduce<ReduceMap::kAdd>(args, buffers, range);
    case ReduceMap::kAddAbs:
      return reduce<ReduceMap::kAddAbs>(args, buffers, range);
    case ReduceMap::kAddSquare:
      return reduce<ReduceMap::kAddSquare>(args, buffers, range);
    case ReduceMap::kMax:
      return reduce<ReduceMap::kMax>(args, buffers, range);
    case ReduceMap::kMin:
      return reduce<ReduceMap::kMin>(args, buffers, range);
    case ReduceMap::kMultiply:
      return reduce<ReduceMap::kMultiply>(args, buffers, range);
    case ReduceMap::kLogAddExp:
      return reduce<ReduceMap::kLogAddExp>(args, buffers, range);
  }
}

}  // namespace

extern const KernelEntry reduce_kernels[] = {{"reduce_f32", reduce_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
