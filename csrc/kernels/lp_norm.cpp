// l1_norm_f32, l2_norm_f32, max_norm_f32 (the greatest value): y = x / norm over the axis of [outer, axis, inner];
// x / `zero` if the norm is 0.
//
// Operands: x, y; float alignment; y may be x. Split over rows, or over runs of columns if inner > 1.
#include "kernels/lp_norm.hpp"

#include "simd/partial.hpp"
#include "simd/root.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kUnroll = 4;

enum class Norm { kMax, kL1, kL2 };

template <Norm kNorm>
ENGINE_INLINE Vec add_term(Vec x, Vec total) {
  if (kNorm == Norm::kMax)  // each gives its second argument beside a NaN; other results are equal
    return (Vec)((VecInt)max(total, x) | (VecInt)max(x, total));
  return kNorm == Norm::kL2 ? fma(x, x, total) : total + abs(x);
}

// What the sums begin with, and what missing lanes count as.
template <Norm kNorm>
ENGINE_INLINE Vec neutral() {
  return kNorm == Norm::kMax ? broadcast(-__builtin_inff()) : zero();
}

template <Norm kNorm>
ENGINE_INLINE Vec norm_of(Vec total, float zero) {
  if (kNorm == Norm::kL2) total = square_root(total);
  return total == 0.0f ? broadcast(zero) : total;
}

template <Norm kNorm>
ENGINE_INLINE Vec add_all(const Vec (&total)[kUnroll]) {
  if (kNorm != Norm::kMax) return add_lanes((total[0] + total[1]) + (total[2] + total[3]));
  alignas(64) static constexpr std::int32_t kOrder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const VecInt order = *reinterpret_cast<const VecInt*>(kOrder);
  Vec most = add_term<kNorm>(add_term<kNorm>(total[0], total[1]), add_term<kNorm>(total[2], total[3]));
  for (int half = kLanes / 2; half > 0; half /= 2) most = add_term<kNorm>(ENGINE_SHUFFLE(most, (order ^ half)), most);
  return most;
}

template <Norm kNorm>
void normalize_row(const float* x, float* y, std::int64_t count, float zero_norm) {
  Vec total[kUnroll];
  for (int u = 0; u < kUnroll; ++u) total[u] = neutral<kNorm>();
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes)
    for (int u = 0; u < kUnroll; ++u) total[u] = add_term<kNorm>(load(x + i + u * kLanes), total[u]);
  for (; i + kLanes <= count; i += kLanes) total[0] = add_term<kNorm>(load(x + i), total[0]);
  if (i < count) total[1] = add_term<kNorm>(load_partial(x + i, count - i, neutral<kNorm>()), total[1]);
  const Vec norm = norm_of<kNorm>(add_all<kNorm>(total), zero_norm);
  for (i = 0; i + kLanes <= count; i += kLanes) store(y + i, load(x + i) / norm);
  if (i < count) store_partial(y + i, load_partial(x + i, count - i, zero()) / norm, count - i);
}

// Vectors of adjacent columns, whose elements are `step` floats apart; `count` lanes if kVectors is 1.
template <Norm kNorm, int kVectors>
void normalize_columns(const float* x, float* y, std::int64_t axis, std::int64_t step, std::int64_t count,
                       float zero_norm) {
  const auto read = [count](const float* from, int v) {
    return kVectors == 1 ? load_partial(from, count, neutral<kNorm>()) : load(from + v * kLanes);
  };
  Vec norm[kVectors];
  for (int v = 0; v < kVectors; ++v) norm[v] = neutral<kNorm>();
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) norm[v] = add_term<kNorm>(read(x + k * step, v), norm[v]);
  for (int v = 0; v < kVectors; ++v) norm[v] = norm_of<kNorm>(norm[v], zero_norm);
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = read(x + k * step, v) / norm[v];
      if constexpr (kVectors == 1)
        store_partial(y + k * step, value, count);
      else
        store(y + k * step + v * kLanes, value);
    }
}

template <Norm kNorm>
void lp_norm(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const LpNormArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  if (args.inner == 1) {
    const WorkRange range = split_work(args.outer, context.worker, context.workers);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      normalize_row<kNorm>(x + i * args.axis, y + i * args.axis, args.axis, args.zero);
    return;
  }
  const std::int64_t runs = (args.inner + kLpNormColumns - 1) / kLpNormColumns;
  const WorkRange range = split_work(args.outer * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t begin = i % runs * kLpNormColumns, end = min64(begin + kLpNormColumns, args.inner);
    const std::int64_t at = i / runs * args.axis * args.inner;
    std::int64_t c = begin;
    for (; c + kUnroll * kLanes <= end; c += kUnroll * kLanes)
      normalize_columns<kNorm, kUnroll>(x + at + c, y + at + c, args.axis, args.inner, kLanes, args.zero);
    for (; c < end; c += kLanes)
      normalize_columns<kNorm, 1>(x + at + c, y + at + c, args.axis, args.inner, min64(kLanes, end - c), args.zero);
  }
}

}  // namespace

extern const KernelEntry lp_norm_kernels[] = {{"l1_norm_f32", lp_norm<Norm::kL1>, nullptr},
                                              {"l2_norm_f32", lp_norm<Norm::kL2>, nullptr},
                                              {"max_norm_f32", lp_norm<Norm::kMax>, nullptr},
                                              {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
