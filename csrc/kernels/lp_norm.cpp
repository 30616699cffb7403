// l1_norm_f32, l2_norm_f32: y = x / norm over the axis of [outer, axis, inner]; 0 if the norm is 0.
//
// Operands: x, y; float alignment; y may be x. Split over rows, or over runs of columns if inner > 1.
#include "kernels/lp_norm.hpp"

#include "simd/partial.hpp"
#include "simd/root.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kUnroll = 4;

template <bool kSquares>
ENGINE_INLINE Vec add_term(Vec x, Vec total) {
  return kSquares ? fma(x, x, total) : total + abs(x);
}

// The norm; +inf instead of zero, which makes every quotient 0.
template <bool kSquares>
ENGINE_INLINE Vec norm_of(Vec total) {
  if (kSquares) total = square_root(total);
  return total == 0.0f ? broadcast(__builtin_inff()) : total;
}

template <bool kSquares>
void normalize_row(const float* x, float* y, std::int64_t count) {
  Vec total[kUnroll] = {};
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes)
    for (int u = 0; u < kUnroll; ++u) total[u] = add_term<kSquares>(load(x + i + u * kLanes), total[u]);
  for (; i + kLanes <= count; i += kLanes) total[0] = add_term<kSquares>(load(x + i), total[0]);
  if (i < count) total[1] = add_term<kSquares>(load_partial(x + i, count - i, zero()), total[1]);
  const Vec norm = norm_of<kSquares>(add_lanes((total[0] + total[1]) + (total[2] + total[3])));
  for (i = 0; i + kLanes <= count; i += kLanes) store(y + i, load(x + i) / norm);
  if (i < count) store_partial(y + i, load_partial(x + i, count - i, zero()) / norm, count - i);
}

// Vectors of adjacent columns, whose elements are `step` floats apart; `count` lanes if kVectors is 1.
template <bool kSquares, int kVectors>
void normalize_columns(const float* x, float* y, std::int64_t axis, std::int64_t step, std::int64_t count) {
  const auto read = [count](const float* from, int v) {
    return kVectors == 1 ? load_partial(from, count, zero()) : load(from + v * kLanes);
  };
  Vec norm[kVectors] = {};
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) norm[v] = add_term<kSquares>(read(x + k * step, v), norm[v]);
  for (int v = 0; v < kVectors; ++v) norm[v] = norm_of<kSquares>(norm[v]);
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = read(x + k * step, v) / norm[v];
      if constexpr (kVectors == 1)
        store_partial(y + k * step, value, count);
      else
        store(y + k * step + v * kLanes, value);
    }
}

template <bool kSquares>
void lp_norm(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const LpNormArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  if (args.inner == 1) {
    const WorkRange range = split_work(args.outer, context.worker, context.workers);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      normalize_row<kSquares>(x + i * args.axis, y + i * args.axis, args.axis);
    return;
  }
  const std::int64_t runs = (args.inner + kLpNormColumns - 1) / kLpNormColumns;
  const WorkRange range = split_work(args.outer * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t begin = i % runs * kLpNormColumns, end = min64(begin + kLpNormColumns, args.inner);
    const std::int64_t at = i / runs * args.axis * args.inner;
    std::int64_t c = begin;
    for (; c + kUnroll * kLanes <= end; c += kUnroll * kLanes)
      normalize_columns<kSquares, kUnroll>(x + at + c, y + at + c, args.axis, args.inner, kLanes);
    for (; c < end; c += kLanes)
      normalize_columns<kSquares, 1>(x + at + c, y + at + c, args.axis, args.inner, min64(kLanes, end - c));
  }
}

}  // namespace

extern const KernelEntry lp_norm_kernels[] = {
    {"l1_norm_f32", lp_norm<false>, nullptr}, {"l2_norm_f32", lp_norm<true>, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
