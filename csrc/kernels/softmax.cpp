// softmax_f32: y = exp(x - max) / sum(exp(x - max)), or its logarithm, over the axis of [outer, axis, inner].
//
// Operands: x, y; float alignment; y may be x. Split over rows, or over runs of columns if inner > 1.
// softmax_sum_f32, softmax_apply_f32: the same for few long rows, in two phases split over chunks of a row. Operands:
// x, y, and a temporary [outer][maximum, sum][chunks].
//
// softmax_bytes: rows of f32 or of 8-bit integers, as 8-bit integers; y may be x if it has its size. Split over rows.
// Scratch: a row of floats.
//
// A row with a NaN or +inf, or with only -inf, is NaN, as the formula implies.
#include "kernels/softmax.hpp"

#include <cmath>
#include <cstring>

#include "kernels/quantize_vector.hpp"
#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kUnroll = 4;
// The exponent below which terms are 0: they change no sum of at least 1, and e^-88 is a denormal, which takes a
// hundred cycles.
constexpr float kMinArgument = -87.0f;

// Ignores NaN, which enters the result through the sum.
float row_max(const float* x, std::int64_t count) {
  Vec best[kUnroll];
  for (Vec& value : best) value = broadcast(-__builtin_inff());
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes)
    for (int u = 0; u < kUnroll; ++u) best[u] = max(load(x + i + u * kLanes), best[u]);
  for (; i + kLanes <= count; i += kLanes) best[0] = max(load(x + i), best[0]);
  if (i < count) best[1] = max(load_partial(x + i, count - i, best[1]), best[1]);
  return reduce_max(max(max(best[0], best[1]), max(best[2], best[3])));
}

// The sum of exp(x - bias); the terms are stored if `y` is not null.
template <bool kStore>
float row_exp(const float* x, float bias, float* y, std::int64_t count) {
  Vec total[kUnroll] = {};
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes)
    for (int u = 0; u < kUnroll; ++u) {
      const Vec value = exp(load(x + i + u * kLanes) - bias, kMinArgument);
      if constexpr (kStore) store(y + i + u * kLanes, value);
      total[u] += value;
    }
  for (; i + kLanes <= count; i += kLanes) {
    const Vec value = exp(load(x + i) - bias, kMinArgument);
    if constexpr (kStore) store(y + i, value);
    total[0] += value;
  }
  if (i < count) {
    // Lanes beyond the row are exp(-inf) = 0, unless the bias is -inf, too: then the whole row is NaN.
    const Vec value = exp(load_partial(x + i, count - i, broadcast(-__builtin_inff())) - bias, kMinArgument);
    if constexpr (kStore) store_partial(y + i, value, count - i);
    total[1] += value;
  }
  return reduce_add((total[0] + total[1]) + (total[2] + total[3]));
}

// y = (x - bias) - log_sum
void row_subtract(const float* x, float bias, float log_sum, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, (load(x + i) - bias) - log_sum);
  if (i < count) store_partial(y + i, (load_partial(x + i, count - i, zero()) - bias) - log_sum, count - i);
}

void row_scale(float* y, float factor, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) * factor);
  if (i < count) store_partial(y + i, load_partial(y + i, count - i, zero()) * factor, count - i);
}

template <bool kLog>
void softmax_row(const float* x, float* y, std::int64_t count) {
  const float top = row_max(x, count);
  const float sum = row_exp<!kLog>(x, top, y, count);
  if constexpr (kLog)
    row_subtract(x, top, __builtin_logf(sum), y, count);
  else
    row_scale(y, 1.0f / sum, count);
}

// Up to kVectors vectors of adjacent columns, whose elements are `step` floats apart; `count` lanes if there is only
// one.
template <bool kLog, int kVectors>
void softmax_columns(const float* x, float* y, std::int64_t axis, std::int64_t step, std::int64_t count) {
  const auto read = [count](const float* from, int v) {
    return kVectors == 1 ? load_partial(from, count, zero()) : load(from + v * kLanes);
  };
  const auto write = [=](float* to, int v, Vec value) {
    if constexpr (kVectors == 1)
      store_partial(to, value, count);
    else
      store(to + v * kLanes, value);
  };
  Vec top[kVectors], sum[kVectors] = {};
  for (Vec& value : top) value = broadcast(-__builtin_inff());
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) top[v] = max(read(x + k * step, v), top[v]);
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = exp(read(x + k * step, v) - top[v], kMinArgument);
      if constexpr (!kLog) write(y + k * step, v, value);
      sum[v] += value;
    }
  if constexpr (kLog)
    for (int v = 0; v < kVectors; ++v)
      for (int l = 0; l < kLanes; ++l) sum[v][l] = __builtin_logf(sum[v][l]);
  else
    for (int v = 0; v < kVectors; ++v) sum[v] = 1.0f / sum[v];
  for (std::int64_t k = 0; k < axis; ++k)
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kLog)
        write(y + k * step, v, (read(x + k * step, v) - top[v]) - sum[v]);
      else
        write(y + k * step, v, read(y + k * step, v) * sum[v]);
    }
}

template <bool kLog>
void softmax(const SoftmaxArgs& args, const float* x, float* y, const KernelContext& context) {
  if (args.inner == 1 && !args.by_columns) {
    const WorkRange range = split_work(args.outer, context.worker, context.workers);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      softmax_row<kLog>(x + i * args.axis, y + i * args.axis, args.axis);
    return;
  }
  const std::int64_t runs = (args.inner + kSoftmaxColumns - 1) / kSoftmaxColumns;
  const WorkRange range = split_work(args.outer * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t begin = i % runs * kSoftmaxColumns, end = min64(begin + kSoftmaxColumns, args.inner);
    const std::int64_t at = i / runs * args.axis * args.inner;
    std::int64_t c = begin;
    for (; c + kUnroll * kLanes <= end; c += kUnroll * kLanes)
      softmax_columns<kLog, kUnroll>(x + at + c, y + at + c, args.axis, args.inner, kLanes);
    for (; c < end; c += kLanes)
      softmax_columns<kLog, 1>(x + at + c, y + at + c, args.axis, args.inner, min64(kLanes, end - c));
  }
}

void softmax_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const SoftmaxArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  if (args.is_log)
    softmax<true>(args, x, y, context);
  else
    softmax<false>(args, x, y, context);
}

void softmax_sum_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const SoftmaxArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* sums = static_cast<float*>(buffers[2]);
  const WorkRange range = split_work(args.outer * args.chunks, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / args.chunks, chunk = i % args.chunks, begin = chunk * kSoftmaxChunk;
    const std::int64_t count = min64(kSoftmaxChunk, args.axis - begin);
    const float* from = x + row * args.axis + begin;
    const float top = row_max(from, count);
    float* to = sums + row * 2 * args.chunks + chunk;
    to[0] = top;
    // A chunk without a value above -inf adds nothing to other chunks, except that a NaN in it must be kept.
    const float bias = top == -__builtin_inff() ? 0.0f : top;
    to[args.chunks] = row_exp<false>(from, bias, nullptr, count);
  }
}

// Combines the maxima and sums of chunks into the maximum and sum of a row.
void combine(const float* tops, std::int64_t chunks, float* top, float* sum) {
  const float* sums = tops + chunks;
  *top = row_max(tops, chunks);
  Vec total = zero();
  for (std::int64_t i = 0; i < chunks; i += kLanes) {
    const std::int64_t count = min64(kLanes, chunks - i);
    const Vec weight = exp(load_partial(tops + i, count, broadcast(*top)) - *top);
    total += weight * load_partial(sums + i, count, zero());
  }
  *sum = reduce_add(total);
}

void softmax_apply_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const SoftmaxArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  const auto* sums = static_cast<const float*>(buffers[2]);
  const WorkRange range = split_work(args.outer * args.chunks, context.worker, context.workers);
  float top = 0.0f, sum = 0.0f;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / args.chunks, begin = i % args.chunks * kSoftmaxChunk;
    const std::int64_t count = min64(kSoftmaxChunk, args.axis - begin), at = row * args.axis + begin;
    if (i == range.begin || begin == 0) combine(sums + row * 2 * args.chunks, args.chunks, &top, &sum);
    if (args.is_log) {
      row_subtract(x + at, top, __builtin_logf(sum), y + at, count);
    } else {
      row_exp<true>(x + at, top, y + at, count);
      row_scale(y + at, 1.0f / sum, count);
    }
  }
}

template <class Byte>
Byte row_max_of_bytes(const Byte* x, std::int64_t count) {
  typedef Byte Run __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
  Run best = x[0] - Run{};
  std::int64_t i = 0;
  for (; i + kVectorBytes <= count; i += kVectorBytes) {
    const Run values = *reinterpret_cast<const Run*>(x + i);
    best = values > best ? values : best;
  }
  if (i < count) {
    Run values = best;
    std::memcpy(&values, x + i, static_cast<std::size_t>(count - i));
    best = values > best ? values : best;
  }
  typedef Byte Part __attribute__((vector_size(16)));
  Byte lanes[kVectorBytes];
  std::memcpy(lanes, &best, sizeof lanes);
  Part top, other;
  std::memcpy(&top, lanes, sizeof top);
  for (int l = 16; l < kVectorBytes; l += 16) {
    std::memcpy(&other, lanes + l, sizeof other);
    top = other > top ? other : top;
  }
  other = __builtin_shufflevector(top, top, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  top = other > top ? other : top;
  other = __builtin_shufflevector(top, top, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
  top = other > top ? other : top;
  Byte most = top[0];
  for (int l = 1; l < 4; ++l) most = top[l] > most ? top[l] : most;
  return most;
}

// The sum of exp((x - top) * scale), whose terms are stored.
template <class Byte>
float row_exp_of_bytes(const Byte* x, float scale, float* y, std::int64_t count) {
  const float bias = row_max_of_bytes(x, count);
  Vec total[kUnroll] = {};
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes)
    for (int u = 0; u < kUnroll; ++u) {
      const Vec value = exp((load_bytes(x + i + u * kLanes) - bias) * scale, kMinArgument);
      store(y + i + u * kLanes, value);
      total[u] += value;
    }
  for (; i < count; i += kLanes) {
    const std::int64_t rest = min64(kLanes, count - i);
    Byte last[kLanes] = {};
    std::memcpy(last, x + i, static_cast<std::size_t>(rest));
    const Vec value = exp((load_bytes(last) - bias) * scale, kMinArgument);
    store_partial(y + i, value, rest);
    total[0] += (Vec)((VecInt)value & first_lanes(rest));
  }
  return reduce_add((total[0] + total[1]) + (total[2] + total[3]));
}

float row_exp_of(const SoftmaxBytesArgs&, const float* x, float* y, std::int64_t count) {
  return row_exp<true>(x, row_max(x, count), y, count);
}
template <class Byte>
float row_exp_of(const SoftmaxBytesArgs& args, const Byte* x, float* y, std::int64_t count) {
  return row_exp_of_bytes(x, args.x_scale, y, count);
}

// The codes of x * factor; code(x) gives the codes of a vector.
template <bool kIsSigned, class Code>
ENGINE_INLINE void row_codes(const float* x, float factor, std::uint8_t* y, std::int64_t count, Code code) {
  constexpr std::int64_t kRun = 4 * kLanes;
  std::int64_t i = 0;
  for (; i + kRun <= count; i += kRun) {
    VecInt codes[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) codes[v] = code(load(x + i + v * kLanes) * factor);
    store_saturated_codes<kIsSigned>(y + i, codes);
  }
  if (i == count) return;
  VecInt codes[4] = {};
  for (int v = 0; i + v * kLanes < count; ++v)
    codes[v] = code(load_partial(x + i + v * kLanes, min64(kLanes, count - i - v * kLanes), zero()) * factor);
  std::uint8_t last[kRun];
  store_saturated_codes<kIsSigned>(last, codes);
  std::memcpy(y + i, last, static_cast<std::size_t>(count - i));
}

template <class X, bool kIsSigned>
void softmax_rows(const SoftmaxBytesArgs& args, const X* x, std::uint8_t* y, const KernelContext& context) {
  float* const terms = static_cast<float*>(context.scratch);
  const WorkRange range = split_work(args.outer, context.worker, context.workers);
  const Quantizer quantizer(args.y_scale, args.y_zero_point);
  const Vec scale = broadcast(args.y_scale), zero_point = broadcast(static_cast<float>(args.y_zero_point));
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const float factor = 1.0f / row_exp_of(args, x + row * args.axis, terms, args.axis);
    std::uint8_t* to = y + row * args.axis;
    if (Quantizer::fits(args.y_scale))
      row_codes<kIsSigned>(terms, factor, to, args.axis, [&](Vec value) { return quantizer.codes(value); });
    else
      row_codes<kIsSigned>(terms, factor, to, args.axis,
                           [&](Vec value) { return Quantizer::divided(value, scale, zero_point); });
  }
}

template <class X>
void softmax_rows(const SoftmaxBytesArgs& args, const void* x, void* y, const KernelContext& context) {
  const X* from = static_cast<const X*>(x);
  std::uint8_t* to = static_cast<std::uint8_t*>(y);
  if (args.y == ElementCode::kI8)
    softmax_rows<X, true>(args, from, to, context);
  else
    softmax_rows<X, false>(args, from, to, context);
}

void softmax_bytes(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const SoftmaxBytesArgs*>(raw);
  if (args.axis == 0) return;
  if (args.x == ElementCode::kF32)
    softmax_rows<float>(args, buffers[0], buffers[1], context);
  else if (args.x == ElementCode::kI8)
    softmax_rows<std::int8_t>(args, buffers[0], buffers[1], context);
  else
    softmax_rows<std::uint8_t>(args, buffers[0], buffers[1], context);
}

}  // namespace

extern const KernelEntry softmax_kernels[] = {{"softmax_f32", softmax_f32, nullptr},
                                              {"softmax_sum_f32", softmax_sum_f32, nullptr},
                                              {"softmax_apply_f32", softmax_apply_f32, nullptr},
                                              {"softmax_bytes", softmax_bytes, nullptr},
                                              {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
