// layer_norm_f32, rms_norm_f32: y = (v - mean) * inv_std * scale + bias for v = x + residual, separately for each row;
// inv_std = 1 / (sqrt(mean of squares of (v - mean) + epsilon) + deviation_epsilon); RMS: without the mean.
//
// Operands as in row_norm.hpp; float alignment; y and the stored sum may be x or the residual. Split over rows.
// layer_norm_parts_f32, rms_norm_parts_f32, then layer_norm_apply_f32, rms_norm_apply_f32: the same in two phases for
// few long rows, split over chunks of a row; the last operand is a temporary [rows][chunks][mean, squares].
#include "kernels/row_norm.hpp"

#include "kernels/moments.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

struct Operands {
  const float *x, *residual, *scale, *bias;
  float *y, *sum, *mean, *inv_std, *parts;
};

ENGINE_INLINE Operands take(const RowNormArgs& args, void* const* buffers) {
  Operands o = {};
  o.x = static_cast<const float*>(*buffers++);
  if (args.has_residual) o.residual = static_cast<const float*>(*buffers++);
  if (args.has_scale) o.scale = static_cast<const float*>(*buffers++);
  if (args.has_bias) o.bias = static_cast<const float*>(*buffers++);
  o.y = static_cast<float*>(*buffers++);
  if (args.stores_sum) o.sum = static_cast<float*>(*buffers++);
  if (args.stores_mean) o.mean = static_cast<float*>(*buffers++);
  if (args.stores_inv_std) o.inv_std = static_cast<float*>(*buffers++);
  if (args.chunks > 0) o.parts = static_cast<float*>(*buffers);
  return o;
}

// total = a + b; returns the sum of its elements.
float add_rows(const float* a, const float* b, float* total, std::int64_t count) {
  Vec partial[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int u = 0; u < 4; ++u) {
      const Vec value = load(a + i + u * kLanes) + load(b + i + u * kLanes);
      store(total + i + u * kLanes, value);
      partial[u] += value;
    }
  for (; i + kLanes <= count; i += kLanes) {
    const Vec value = load(a + i) + load(b + i);
    store(total + i, value);
    partial[0] += value;
  }
  if (i < count) {
    const Vec value = load_partial(a + i, count - i, zero()) + load_partial(b + i, count - i, zero());
    store_partial(total + i, value, count - i);
    partial[1] += value;
  }
  return reduce_add((partial[0] + partial[1]) + (partial[2] + partial[3]));
}

template <bool kScale, bool kBias>
void normalize_row(const float* v, float mean, float factor, const float* scale, const float* bias, float* y,
                   std::int64_t count) {
  const Vec middle = broadcast(mean), inverse = broadcast(factor);
  const auto finish = [&](Vec value, Vec a, Vec b) {
    value = (value - middle) * inverse;
    if constexpr (kScale && kBias) return fma(value, a, b);
    if constexpr (kScale) return value * a;
    if constexpr (kBias) return value + b;
    return value;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(y + i, finish(load(v + i), kScale ? load(scale + i) : zero(), kBias ? load(bias + i) : zero()));
  if (i < count) {
    const Vec a = kScale ? load_partial(scale + i, count - i, zero()) : zero();
    const Vec b = kBias ? load_partial(bias + i, count - i, zero()) : zero();
    store_partial(y + i, finish(load_partial(v + i, count - i, zero()), a, b), count - i);
  }
}

void normalize(const Operands& o, const float* v, float mean, float factor, std::int64_t column, float* y,
               std::int64_t count) {
  const float *scale = o.scale ? o.scale + column : nullptr, *bias = o.bias ? o.bias + column : nullptr;
  if (scale && bias) return normalize_row<true, true>(v, mean, factor, scale, bias, y, count);
  if (scale) return normalize_row<true, false>(v, mean, factor, scale, bias, y, count);
  if (bias) return normalize_row<false, true>(v, mean, factor, scale, bias, y, count);
  normalize_row<false, false>(v, mean, factor, scale, bias, y, count);
}

// The sum x + residual is where it is stored as an output, or where y will be.
ENGINE_INLINE const float* source(const Operands& o, std::int64_t at) {
  if (!o.residual) return o.x + at;
  return (o.sum ? o.sum : o.y) + at;
}

ENGINE_INLINE float inverse_deviation(const RowNormArgs& args, float variance) {
  return 1.0f / (__builtin_sqrtf(variance + args.epsilon) + args.deviation_epsilon);
}

template <bool kCentered>
void norm(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const RowNormArgs*>(raw);
  const Operands o = take(args, buffers);
  const float size = static_cast<float>(args.columns);
  const WorkRange range = split_work(args.rows, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const std::int64_t at = row * args.columns;
    const float* v = source(o, at);
    float total = 0.0f;
    if (o.residual)
      total = add_rows(o.x + at, o.residual + at, const_cast<float*>(v), args.columns);
    else if (kCentered)
      total = row_sum(v, args.columns);
    const float mean = kCentered ? total / size : 0.0f;
    const float factor = inverse_deviation(args, row_squares(v, mean, args.columns) / size);
    if (o.mean) o.mean[row] = mean;
    if (o.inv_std) o.inv_std[row] = factor;
    normalize(o, v, mean, factor, 0, o.y + at, args.columns);
  }
}

template <bool kCentered>
void norm_parts(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const RowNormArgs*>(raw);
  const Operands o = take(args, buffers);
  const WorkRange range = split_work(args.rows * args.chunks, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t begin = i % args.chunks * kRowNormChunk, end = min64(begin + kRowNormChunk, args.columns);
    Moments all = {};
    for (std::int64_t c = begin; c < end; c += kMomentsPart) {
      const std::int64_t at = i / args.chunks * args.columns + c, count = min64(kMomentsPart, end - c);
      const float* v = source(o, at);
      float total = 0.0f;
      if (o.residual)
        total = add_rows(o.x + at, o.residual + at, const_cast<float*>(v), count);
      else if (kCentered)
        total = row_sum(v, count);
      const float mean = kCentered ? total / static_cast<float>(count) : 0.0f;
      merge(all, {static_cast<double>(count), mean, row_squares(v, mean, count)});
    }
    o.parts[i * 2] = static_cast<float>(all.mean);
    o.parts[i * 2 + 1] = static_cast<float>(all.squares);
  }
}

template <bool kCentered>
void norm_apply(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const RowNormArgs*>(raw);
  const Operands o = take(args, buffers);
  const WorkRange range = split_work(args.rows * args.chunks, context.worker, context.workers);
  float mean = 0.0f, factor = 0.0f;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / args.chunks, begin = i % args.chunks * kRowNormChunk;
    if (i == range.begin || begin == 0) {
      Moments all = {};
      for (std::int64_t c = 0; c < args.chunks; ++c) {
        const float* part = o.parts + (row * args.chunks + c) * 2;
        const std::int64_t count = min64(kRowNormChunk, args.columns - c * kRowNormChunk);
        merge(all, {static_cast<double>(count), part[0], part[1]});
      }
      mean = static_cast<float>(all.mean);
      factor = inverse_deviation(args, static_cast<float>(all.squares / static_cast<double>(args.columns)));
    }
    if (begin == 0 && o.mean) o.mean[row] = mean;
    if (begin == 0 && o.inv_std) o.inv_std[row] = factor;
    const std::int64_t at = row * args.columns + begin;
    normalize(o, source(o, at), mean, factor, begin, o.y + at, min64(kRowNormChunk, args.columns - begin));
  }
}

}  // namespace

extern const KernelEntry row_norm_kernels[] = {{"layer_norm_f32", norm<true>, nullptr},
                                               {"rms_norm_f32", norm<false>, nullptr},
                                               {"layer_norm_parts_f32", norm_parts<true>, nullptr},
                                               {"rms_norm_parts_f32", norm_parts<false>, nullptr},
                                               {"layer_norm_apply_f32", norm_apply<true>, nullptr},
                                               {"rms_norm_apply_f32", norm_apply<false>, nullptr},
                                               {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
