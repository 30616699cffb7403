// window_pool: see window_pool.hpp.
//
// Operands: x [maps, in...], y [maps, out...], and with positions int64 of the shape of y; element alignment; they must
// not overlap. A NaN is the maximum of its windows; the position is the first maximum's, whether it is NaN or a number.
// Sums are in f64. Split over rows of the output. Scratch without positions: a row of the map, as f64.
#include "kernels/window_pool.hpp"

#include <cmath>

#include "simd/shuffle.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// The positions of a window along one axis that are inside of the map: first, first + step, ... below end.
struct Span {
  std::int64_t first, end, step;
  std::int64_t counted;  // including the padding, if it counts
};

// How many steps reach `distance`, which is positive. Without gaps, this needs no division, of which a row has several.
ENGINE_INLINE std::int64_t steps_to(std::int64_t distance, std::int64_t step) {
  return step == 1 ? distance : (distance + step - 1) / step;
}

Span span_of(const WindowPoolArgs& args, int axis, std::int64_t output) {
  const std::int64_t step = args.dilation[axis], start = output * args.stride[axis] - args.begin[axis];
  const std::int64_t length = args.in[axis], kernel = args.kernel[axis];
  const std::int64_t skipped = start < 0 ? steps_to(-start, step) : 0;
  const std::int64_t behind = start + kernel * step;
  Span span = {start + skipped * step, behind < length ? behind : length, step, 0};
  const std::int64_t limit = args.counts_padding ? length + args.end[axis] : length;
  if (args.counts_padding) {  // no position is before the padding
    const std::int64_t room = limit - start;
    const std::int64_t fitting = room <= 0 ? 0 : steps_to(room, step);
    span.counted = fitting < kernel ? fitting : kernel;
  } else {
    span.counted = span.first < span.end ? steps_to(span.end - span.first, step) : 0;
  }
  return span;
}

template <class T>
struct Lowest;
template <>
struct Lowest<float> {
  static constexpr float kValue = -__builtin_inff();
};
template <>
struct Lowest<std::int8_t> {
  static constexpr std::int8_t kValue = INT8_MIN;
};
template <>
struct Lowest<std::uint8_t> {
  static constexpr std::uint8_t kValue = 0;
};

template <class T>
void pool_maximum(const WindowPoolArgs& args, const T* map, const Span* spans, T* to, std::int64_t* position,
                  std::int64_t base) {
  T best = Lowest<T>::kValue;
  std::int64_t place = -1;
  for (std::int64_t d = spans[0].first; d < spans[0].end; d += spans[0].step)
    for (std::int64_t h = spans[1].first; h < spans[1].end; h += spans[1].step)
      for (std::int64_t w = spans[2].first; w < spans[2].end; w += spans[2].step) {
        const T value = map[(d * args.in[1] + h) * args.in[2] + w];
        if (value > best || place < 0 || (value != value && best == best))
          place = args.column_major ? d * args.in[1] * args.in[2] + w * args.in[1] + h
                                    : (d * args.in[1] + h) * args.in[2] + w;
        if (value > best || value != value) best = value;
      }
  *to = best;
  *position = place < 0 ? -1 : base + place;
}

constexpr std::int64_t kChunk = 64;

// The operation on the elements of a window: `begin`, `take` an element, `join` two results.
template <class T>
struct Maximum {
  using Value = T;
  static constexpr T begin() { return Lowest<T>::kValue; }
  static ENGINE_ALWAYS_INLINE T take(T x, std::int32_t) { return x; }
  static ENGINE_ALWAYS_INLINE T join(T best, T x) {
    return static_cast<int>(x > best) | static_cast<int>(x != x) ? x : best;
  }
};

struct Sum {
  using Value = double;
  static constexpr double begin() { return 0; }
  static ENGINE_ALWAYS_INLINE double take(float x, std::int32_t) { return static_cast<double>(x); }
  static ENGINE_ALWAYS_INLINE double join(double sum, double x) { return sum + x; }
};

struct AbsoluteSum : Sum {
  static ENGINE_ALWAYS_INLINE double take(float x, std::int32_t) { return __builtin_fabs(static_cast<double>(x)); }
};

struct SquareSum : Sum {
  static ENGINE_ALWAYS_INLINE double take(float x, std::int32_t) {
    return static_cast<double>(x) * static_cast<double>(x);
  }
};

struct PowerSum : Sum {
  static ENGINE_ALWAYS_INLINE double take(float x, std::int32_t power) {
    const double value = __builtin_fabs(static_cast<double>(x));
    if (power > 8) return pow(value, static_cast<double>(power));
    double product = value;
    for (std::int32_t i = 1; i < power; ++i) product *= value;
    return product;
  }
};

template <class T>
ENGINE_INLINE T finished(const WindowPoolArgs&, const Span*, std::int64_t, T best) {
  return best;
}
ENGINE_INLINE float finished(const WindowPoolArgs& args, const Span* spans, std::int64_t output, double sum) {
  if (args.op == WindowPoolOp::kMean)
    sum /= static_cast<double>(spans[0].counted * spans[1].counted * span_of(args, 2, output).counted);
  else if (args.power == 2)
    sum = sqrt(sum);
  else if (args.power != 1)
    sum = pow(sum, 1.0 / static_cast<double>(args.power));
  return static_cast<float>(sum);
}

// A row of outputs. First the rows of the windows are joined, element by element, then the elements of the joined row:
// at most kChunk outputs at a time, and each element of their windows in turn.
template <class T, class Fold>
void pool_row(const WindowPoolArgs& args, const T* map, const Span* spans, typename Fold::Value* line, T* to) {
  using Value = typename Fold::Value;
  const std::int64_t stride = args.stride[2], length = args.in[2];
  bool is_first = true;
  for (std::int64_t d = spans[0].first; d < spans[0].end; d += spans[0].step)
    for (std::int64_t h = spans[1].first; h < spans[1].end; h += spans[1].step) {
      const T* row = map + (d * args.in[1] + h) * length;
      if (is_first)
        for (std::int64_t w = 0; w < length; ++w) line[w] = Fold::take(row[w], args.power);
      else
        for (std::int64_t w = 0; w < length; ++w) line[w] = Fold::join(line[w], Fold::take(row[w], args.power));
      is_first = false;
    }
  for (std::int64_t first = 0; first < args.out[2]; first += kChunk) {
    const std::int64_t count = args.out[2] - first < kChunk ? args.out[2] - first : kChunk;
    Value joined[kChunk];
    for (Value& each : joined) each = Fold::begin();
    for (std::int64_t k = 0; k < args.kernel[2] && !is_first; ++k) {
      const std::int64_t at = first * stride - args.begin[2] + k * args.dilation[2];
      const std::int64_t low = at < 0 ? (-at + stride - 1) / stride : 0;
      const std::int64_t fitting = at < length ? (length - 1 - at) / stride + 1 : 0;
      const std::int64_t high = fitting < count ? fitting : count;
      for (std::int64_t c = low; c < high; ++c) joined[c] = Fold::join(joined[c], line[at + c * stride]);
    }
    for (std::int64_t c = 0; c < count; ++c) to[first + c] = finished(args, spans, first + c, joined[c]);
  }
}

// -- maxima of f32 in vectors ---------------------------------------------------------------------------------------

// The rows of the windows of a row of outputs: `planes` times `rows` of them, at least one.
struct Rows {
  const float* first;
  std::int64_t planes, rows, plane_step, row_step;
};

Rows rows_of(const WindowPoolArgs& args, const float* map, const Span* spans) {
  const auto count = [](const Span& span) {
    return span.first < span.end ? steps_to(span.end - span.first, span.step) : 0;
  };
  const std::int64_t length = args.in[2], plane = args.in[1] * length;
  return {map + spans[0].first * plane + spans[1].first * length, count(spans[0]), count(spans[1]),
          spans[0].step * plane, spans[1].step * length};
}

// Largest elements, lane by lane. A maximum that keeps NaNs would wait for two comparisons before each next one, so
// the largest magnitude shows whether there was a NaN: as an integer, it is above that of infinity.
struct Largest {
  simd::Vec best;
  simd::VecInt magnitude;

  static ENGINE_ALWAYS_INLINE Largest of(simd::Vec x) { return {x, (simd::VecInt)x & 0x7fffffff}; }
  ENGINE_ALWAYS_INLINE void take(simd::Vec x) {
    const simd::VecInt bits = (simd::VecInt)x & 0x7fffffff;
    best = simd::max(best, x);
    magnitude = bits > magnitude ? bits : magnitude;
  }
  ENGINE_ALWAYS_INLINE simd::Vec value() const {
    return magnitude > 0x7f800000 ? simd::broadcast(__builtin_nanf("")) : best;
  }
};

ENGINE_INLINE simd::Vec join_lanes(const Rows& rows, std::int64_t column) {
  Largest found = Largest::of(simd::load(rows.first + column));
  for (std::int64_t d = 0; d < rows.planes; ++d)
    for (std::int64_t h = d == 0; h < rows.rows; ++h)
      found.take(simd::load(rows.first + d * rows.plane_step + h * rows.row_step + column));
  return found.value();
}

// The maximum of each column of the rows. The last vector overlaps the one before.
void join_rows(const Rows& rows, float* line, std::int64_t length) {
  if (length < simd::kLanes) {
    for (std::int64_t w = 0; w < length; ++w) {
      float best = rows.first[w];
      for (std::int64_t d = 0; d < rows.planes; ++d)
        for (std::int64_t h = 0; h < rows.rows; ++h)
          best = Maximum<float>::join(best, rows.first[d * rows.plane_step + h * rows.row_step + w]);
      line[w] = best;
    }
    return;
  }
  for (std::int64_t w = 0; w + simd::kLanes <= length; w += simd::kLanes) simd::store(line + w, join_lanes(rows, w));
  simd::store(line + length - simd::kLanes, join_lanes(rows, length - simd::kLanes));
}

// kLanes elements, kStride apart. With 2, the element behind the last one is read, too.
template <int kStride>
ENGINE_INLINE simd::Vec load_lanes(const float* from) {
  if constexpr (kStride == 1) {
    return simd::load(from);
  } else {
    simd::VecInt even = {};
    for (int i = 0; i < simd::kLanes; ++i) even[i] = 2 * i;
    return ENGINE_SHUFFLE(simd::load(from), simd::load(from + simd::kLanes), even);
  }
}

template <int kStride>
ENGINE_INLINE void maximum_lanes(const WindowPoolArgs& args, const float* line, float* to, std::int64_t output) {
  const float* const from = line + output * kStride - args.begin[2];
  Largest found = Largest::of(load_lanes<kStride>(from));
  for (std::int64_t k = 1; k < args.kernel[2]; ++k) found.take(load_lanes<kStride>(from + k * args.dilation[2]));
  simd::store(to + output, found.value());
}

// Outputs low, ..., high - 1, at least a vector of them, whose windows are inside of the row.
template <int kStride>
void maxima_inside(const WindowPoolArgs& args, const float* line, float* to, std::int64_t low, std::int64_t high) {
  for (std::int64_t w = low; w + simd::kLanes <= high; w += simd::kLanes) maximum_lanes<kStride>(args, line, to, w);
  maximum_lanes<kStride>(args, line, to, high - simd::kLanes);
}

void maxima_at(const WindowPoolArgs& args, const float* line, float* to, std::int64_t low, std::int64_t high) {
  for (std::int64_t w = low; w < high; ++w) {
    float best = Maximum<float>::begin();
    const Span span = span_of(args, 2, w);
    for (std::int64_t x = span.first; x < span.end; x += span.step) best = Maximum<float>::join(best, line[x]);
    to[w] = best;
  }
}

// A row of outputs: the maxima of the columns of its rows, then of the windows of these.
void maximum_row(const WindowPoolArgs& args, const float* map, const Span* spans, float* line, float* to) {
  const std::int64_t outputs = args.out[2], stride = args.stride[2];
  const Rows rows = rows_of(args, map, spans);
  if (rows.planes < 1 || rows.rows < 1) {
    for (std::int64_t w = 0; w < outputs; ++w) to[w] = Maximum<float>::begin();
    return;
  }
  join_rows(rows, line, args.in[2]);
  const std::int64_t room = args.in[2] - 1 - (args.kernel[2] - 1) * args.dilation[2] + args.begin[2];
  const std::int64_t fitting = room < 0 ? 0 : room / stride + 1;
  const std::int64_t low = (args.begin[2] + stride - 1) / stride, high = fitting < outputs ? fitting : outputs;
  if (stride > 2 || high - low < simd::kLanes) return maxima_at(args, line, to, 0, outputs);
  maxima_at(args, line, to, 0, low);
  if (stride == 1)
    maxima_inside<1>(args, line, to, low, high);
  else
    maxima_inside<2>(args, line, to, low, high);
  maxima_at(args, line, to, high, outputs);
}

template <class T>
void pool_row(const WindowPoolArgs& args, const T* map, const Span* spans, void* scratch, T* to) {
  if constexpr (sizeof(T) == sizeof(float)) {
    double* const line = static_cast<double*>(scratch);
    if (args.op == WindowPoolOp::kMean) return pool_row<T, Sum>(args, map, spans, line, to);
    if (args.op == WindowPoolOp::kNorm && args.power == 1) return pool_row<T, AbsoluteSum>(args, map, spans, line, to);
    if (args.op == WindowPoolOp::kNorm && args.power == 2) return pool_row<T, SquareSum>(args, map, spans, line, to);
    if (args.op == WindowPoolOp::kNorm) return pool_row<T, PowerSum>(args, map, spans, line, to);
    return maximum_row(args, map, spans, static_cast<float*>(scratch), to);
  } else {
    pool_row<T, Maximum<T>>(args, map, spans, static_cast<T*>(scratch), to);
  }
}

template <class T>
void pool(const WindowPoolArgs& args, void* const* buffers, const KernelContext& context) {
  const std::int64_t pixels = args.in[0] * args.in[1] * args.in[2];
  const WorkRange range = split_work(args.maps * args.out[0] * args.out[1], context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t map = i / (args.out[0] * args.out[1]), row = i % (args.out[0] * args.out[1]);
    Span spans[3] = {span_of(args, 0, row / args.out[1]), span_of(args, 1, row % args.out[1]), {}};
    const T* from = static_cast<const T*>(buffers[0]) + map * pixels;
    T* to = static_cast<T*>(buffers[1]) + i * args.out[2];
    std::int64_t* positions = args.has_positions ? static_cast<std::int64_t*>(buffers[2]) + i * args.out[2] : nullptr;
    if (positions == nullptr) {
      pool_row(args, from, spans, context.scratch, to);
      continue;
    }
    for (std::int64_t w = 0; w < args.out[2]; ++w) {
      spans[2] = span_of(args, 2, w);
      pool_maximum(args, from, spans, to + w, positions + w, map * pixels);
    }
  }
}

void window_pool(const void* arguments, void* const* buffers, const KernelContext& context) {
  const WindowPoolArgs& args = *static_cast<const WindowPoolArgs*>(arguments);
  switch (args.type) {
    case ElementCode::kF32:
      return pool<float>(args, buffers, context);
    case ElementCode::kI8:
      return pool<std::int8_t>(args, buffers, context);
    case ElementCode::kU8:
      return pool<std::uint8_t>(args, buffers, context);
    default:  // prepare accepts no other
      break;
  }
}

}  // namespace

extern const KernelEntry window_pool_kernels[] = {{"window_pool", window_pool, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
