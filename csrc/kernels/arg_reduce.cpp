// arg_reduce: the indices of maxima or minima, as int64. hardmax_f32: 1 at each maximum, 0 elsewhere.
//
// Operands: x, y; element alignment; they must not overlap. Split over rows, or over tiles of columns. A NaN counts as
// the extreme value, as in numpy. An empty axis yields 0.
#include "kernels/arg_reduce.hpp"

#include "simd/partial.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

template <class T>
ENGINE_INLINE bool is_nan(T x) {
  return x != x;
}

// Whether `x`, which comes after `best`, replaces it.
template <class T, bool kMin, bool kLast>
ENGINE_INLINE bool is_better(T x, T best) {
  const bool is_beyond = kMin ? (kLast ? x <= best : x < best) : (kLast ? x >= best : x > best);
  const bool yields = kLast | !is_nan(best);
  return is_beyond | (is_nan(x) & yields);  // without branches, so that columns are vectorised
}

template <bool kMin>
ENGINE_INLINE Vec extreme(Vec best, Vec x) {
  return ((kMin ? x < best : x > best) | (x != x)) ? x : best;
}

// Adjacent elements: finds the extreme value first, then its position.
template <bool kMin, bool kLast>
std::int64_t find_in_row(const float* x, std::int64_t count) {
  if (count == 0) return 0;
  constexpr int kStep = 4 * kLanes;
  const Vec blank = broadcast(kMin ? __builtin_inff() : -__builtin_inff());
  Vec acc[4] = {blank, blank, blank, blank};
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
    for (int v = 0; v < 4; ++v) acc[v] = extreme<kMin>(acc[v], load(x + i + v * kLanes));
  for (; i < count; i += kLanes)
    acc[0] = extreme<kMin>(acc[0], load_partial(x + i, count - i < kLanes ? count - i : kLanes, blank));
  for (int v = 1; v < 4; ++v) acc[0] = extreme<kMin>(acc[0], acc[v]);
  float best = acc[0][0];
  for (int l = 1; l < kLanes; ++l) best = is_better<float, kMin, false>(acc[0][l], best) ? acc[0][l] : best;
  const bool wants_nan = is_nan(best);
  const auto is_it = [&](float value) { return wants_nan ? is_nan(value) : value == best; };
  if constexpr (kLast) {
    for (i = count - 1; i > 0 && !is_it(x[i]);) --i;
    return i;
  }
  for (i = 0; i < count - 1 && !is_it(x[i]);) ++i;
  return i;
}

// `width` adjacent columns, at most kArgTile, of `count` elements each.
template <class T, bool kMin, bool kLast>
void find_in_columns(const T* x, std::int64_t count, std::int64_t stride, std::int64_t width, std::int64_t* found) {
  T best[kArgTile];
  std::int32_t at[kArgTile];
  for (std::int64_t c = 0; c < width; ++c) {
    best[c] = count == 0 ? T(0) : x[c];
    at[c] = 0;
  }
  for (std::int64_t i = 1; i < count; ++i) {
    const T* row = x + i * stride;
    for (std::int64_t c = 0; c < width; ++c) {
      const bool takes = is_better<T, kMin, kLast>(row[c], best[c]);
      best[c] = takes ? row[c] : best[c];
      at[c] = takes ? static_cast<std::int32_t>(i) : at[c];
    }
  }
  for (std::int64_t c = 0; c < width; ++c) found[c] = at[c];
}

ENGINE_INLINE std::int64_t tiles_of(const ArgReduceArgs& args) {
  return (args.inner + kArgTile - 1) / kArgTile;
}

// Calls found(outer, first column, width, positions) for each tile of a worker's share.
template <class T, bool kMin, bool kLast, class Found>
void find(const ArgReduceArgs& args, const T* x, const KernelContext& context, const Found& found) {
  const std::int64_t tiles = tiles_of(args);
  const WorkRange range = split_work(args.outer * tiles, context.worker, context.workers);
  std::int64_t positions[kArgTile];
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t outer = i / tiles, column = i % tiles * kArgTile;
    const std::int64_t width = args.inner - column < kArgTile ? args.inner - column : kArgTile;
    const T* from = x + outer * args.axis * args.inner + column;
    bool is_row = false;
    if constexpr (sizeof(T) == sizeof(float) && T(0.5) != T(0)) {
      is_row = args.inner == 1;
      if (is_row) positions[0] = find_in_row<kMin, kLast>(from, args.axis);
    }
    if (!is_row) find_in_columns<T, kMin, kLast>(from, args.axis, args.inner, width, positions);
    found(outer, column, width, positions);
  }
}

template <class T>
void arg_reduce(const ArgReduceArgs& args, void* const* buffers, const KernelContext& context) {
  const T* x = static_cast<const T*>(buffers[0]);
  std::int64_t* y = static_cast<std::int64_t*>(buffers[1]);
  const auto write = [&](std::int64_t outer, std::int64_t column, std::int64_t width, const std::int64_t* positions) {
    for (std::int64_t c = 0; c < width; ++c) y[outer * args.inner + column + c] = positions[c];
  };
  if (args.is_min)
    args.is_last ? find<T, true, true>(args, x, context, write) : find<T, true, false>(args, x, context, write);
  else
    args.is_last ? find<T, false, true>(args, x, context, write) : find<T, false, false>(args, x, context, write);
}

void arg_reduce(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ArgReduceArgs& args = *static_cast<const ArgReduceArgs*>(raw_args);
  switch (args.type) {
    case ElementCode::kF32:
      return arg_reduce<float>(args, buffers, context);
    case ElementCode::kI32:
      return arg_reduce<std::int32_t>(args, buffers, context);
    case ElementCode::kI64:
      return arg_reduce<std::int64_t>(args, buffers, context);
    case ElementCode::kU8:
      return arg_reduce<std::uint8_t>(args, buffers, context);
    case ElementCode::kI8:
      return arg_reduce<std::int8_t>(args, buffers, context);
    default:  // prepare accepts no other
      break;
  }
}

void hardmax_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ArgReduceArgs& args = *static_cast<const ArgReduceArgs*>(raw_args);
  float* y = static_cast<float*>(buffers[1]);
  const auto write = [&](std::int64_t outer, std::int64_t column, std::int64_t width, const std::int64_t* positions) {
    float* to = y + outer * args.axis * args.inner + column;
    for (std::int64_t i = 0; i < args.axis; ++i, to += args.inner)
      for (std::int64_t c = 0; c < width; ++c) to[c] = positions[c] == i ? 1.0f : 0.0f;
  };
  find<float, false, false>(args, static_cast<const float*>(buffers[0]), context, write);
}

}  // namespace

extern const KernelEntry arg_reduce_kernels[] = {
    {"arg_reduce", arg_reduce, nullptr}, {"hardmax_f32", hardmax_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
