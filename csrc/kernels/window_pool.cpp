// window_pool: see window_pool.hpp.
//
// Operands: x [maps, in...], y [maps, out...], and with positions int64 of the shape of y; element alignment; they must
// not overlap. A NaN is the maximum of its windows; the position is the first maximum's, whether it is NaN or a number.
// Sums are in f64. Split over rows of the output. Scratch without positions: a row of the map, as f64; or a padded row
// (WindowPoolArgs::line) and a row of outputs.
#include "kernels/window_pool.hpp"

#include <cmath>

#include "simd/shuffle.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

ENGINE_INLINE std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return b == 1 ? a : (a + b - 1) / b;
}

// The positions of a window along one axis that are inside of the map: first, first + step, ... below end.
struct Span {
  std::int64_t first, end, step;
  std::int64_t counted;  // including the padding, if it counts
};

Span span_of(const WindowPoolArgs& args, int axis, std::int64_t output) {
  const std::int64_t step = args.dilation[axis], start = output * args.stride[axis] - args.begin[axis];
  const std::int64_t length = args.in[axis], kernel = args.kernel[axis];
  const std::int64_t skipped = start < 0 ? divided_up(-start, step) : 0;
  const std::int64_t behind = start + kernel * step;
  Span span = {start + skipped * step, behind < length ? behind : length, step, 0};
  const std::int64_t limit = args.counts_padding ? length + args.end[axis] : length;
  if (args.counts_padding) {  // no position is before the padding
    const std::int64_t room = limit - start;
    const std::int64_t fitting = room <= 0 ? 0 : divided_up(room, step);
    span.counted = fitting < kernel ? fitting : kernel;
  } else {
    span.counted = span.first < span.end ? divided_up(span.end - span.first, step) : 0;
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

// The same folds in vectors.
template <class Fold>
struct Vectors;

template <>
struct Vectors<Maximum<float>> {
  using Vector = simd::Vec;
  static constexpr int kCount = simd::kLanes;
  static ENGINE_ALWAYS_INLINE Vector take(const float* row) { return simd::load(row); }
  static ENGINE_ALWAYS_INLINE Vector load(const float* from) { return simd::load(from); }
  static ENGINE_ALWAYS_INLINE void store(float* to, Vector value) { simd::store(to, value); }
  // The maximum is `best`, its second operand, if either is NaN.
  static ENGINE_ALWAYS_INLINE Vector join(Vector best, Vector x) { return x != x ? x : simd::max(x, best); }
  static ENGINE_ALWAYS_INLINE Vector load_even(const float* from) {
    simd::VecInt even;
    for (int i = 0; i < kCount; ++i) even[i] = 2 * i;
    using namespace simd;
    return ENGINE_SHUFFLE(simd::load(from), simd::load(from + kCount), even);
  }
};

template <>
struct Vectors<Sum> {
  typedef double Vector __attribute__((vector_size(simd::kVectorBytes), aligned(8), may_alias));
  typedef float Narrow __attribute__((vector_size(simd::kVectorBytes / 2), aligned(4), may_alias));
  typedef std::int64_t Index __attribute__((vector_size(simd::kVectorBytes)));
  static constexpr int kCount = simd::kLanes / 2;
  static ENGINE_ALWAYS_INLINE Vector take(const float* row) {
    return __builtin_convertvector(*reinterpret_cast<const Narrow*>(row), Vector);
  }
  static ENGINE_ALWAYS_INLINE Vector load(const double* from) { return *reinterpret_cast<const Vector*>(from); }
  static ENGINE_ALWAYS_INLINE void store(double* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
  static ENGINE_ALWAYS_INLINE Vector join(Vector sum, Vector x) { return sum + x; }
  static ENGINE_ALWAYS_INLINE Vector load_even(const double* from) {
    Index even;
    for (int i = 0; i < kCount; ++i) even[i] = 2 * i;
    using namespace simd;
    return ENGINE_SHUFFLE(load(from), load(from + kCount), even);
  }
  static ENGINE_ALWAYS_INLINE void store_narrow(float* to, Vector value) {
    *reinterpret_cast<Narrow*>(to) = __builtin_convertvector(value, Narrow);
  }
};

// The rows of the windows, joined element by element in `line`. The last vector overlaps the one before.
template <class Fold>
void join_rows(const WindowPoolArgs& args, const float* map, const Span* spans, typename Fold::Value* line) {
  using V = Vectors<Fold>;
  const std::int64_t length = args.in[2];
  // Calls `take` with the elements of a column of the windows.
  const auto visit = [&](std::int64_t w, const auto& take) {
    for (std::int64_t d = spans[0].first; d < spans[0].end; d += spans[0].step)
      for (std::int64_t h = spans[1].first; h < spans[1].end; h += spans[1].step)
        take(map + (d * args.in[1] + h) * length + w);
  };
  if (length < V::kCount) {
    for (std::int64_t w = 0; w < length; ++w) {
      auto sum = Fold::begin();
      visit(w, [&sum](const float* x) { sum = Fold::join(sum, Fold::take(*x, 1)); });
      line[w] = sum;
    }
    return;
  }
  for (std::int64_t w = 0; w < length; w += V::kCount) {
    const std::int64_t at = w + V::kCount <= length ? w : length - V::kCount;
    typename V::Vector sum = Fold::begin() - typename V::Vector{};
    visit(at, [&sum](const float* x) { sum = V::join(sum, V::take(x)); });
    V::store(line + at, sum);
  }
}

// The elements of each output's window in a padded line of joined rows.
template <class Fold>
void join_line(const WindowPoolArgs& args, const typename Fold::Value* line, typename Fold::Value* to) {
  using V = Vectors<Fold>;
  const std::int64_t count = args.out[2], kernel = args.kernel[2], step = args.dilation[2], stride = args.stride[2];
  if (count < V::kCount) {
    for (std::int64_t c = 0; c < count; ++c) {
      to[c] = line[c * stride];
      for (std::int64_t k = 1; k < kernel; ++k) to[c] = Fold::join(to[c], line[c * stride + k * step]);
    }
    return;
  }
  for (std::int64_t c = 0; c < count; c += V::kCount) {
    const std::int64_t at = c + V::kCount <= count ? c : count - V::kCount;
    const auto* from = line + at * stride;
    auto joined = stride == 1 ? V::load(from) : V::load_even(from);
    if (stride == 1)
      for (std::int64_t k = 1; k < kernel; ++k) joined = V::join(joined, V::load(from + k * step));
    else
      for (std::int64_t k = 1; k < kernel; ++k) joined = V::join(joined, V::load_even(from + k * step));
    V::store(to + at, joined);
  }
}

// All elements of a line as one result: several partial ones, so that they do not wait for each other.
template <class Fold>
typename Fold::Value join_whole(const typename Fold::Value* line, std::int64_t length) {
  using V = Vectors<Fold>;
  typename V::Vector parts[2] = {Fold::begin() - typename V::Vector{}, Fold::begin() - typename V::Vector{}};
  std::int64_t at = 0;
  for (; at + 2 * V::kCount <= length; at += 2 * V::kCount)
    for (int i = 0; i < 2; ++i) parts[i] = V::join(parts[i], V::load(line + at + i * V::kCount));
  const auto lanes = V::join(parts[0], parts[1]);
  auto joined = Fold::begin();
  for (int i = 0; i < V::kCount; ++i) joined = Fold::join(joined, lanes[i]);
  for (; at < length; ++at) joined = Fold::join(joined, line[at]);
  return joined;
}

template <class Fold>
void fold_row(const WindowPoolArgs& args, const float* map, const Span* spans, typename Fold::Value* line,
              typename Fold::Value* to) {
  typename Fold::Value* inner = line + args.begin[2];
  join_rows<Fold>(args, map, spans, inner);
  if (args.out[2] == 1 && args.kernel[2] == args.in[2] && args.dilation[2] == 1 && args.begin[2] == 0)
    *to = join_whole<Fold>(inner, args.in[2]);
  else
    join_line<Fold>(args, line, to);
}

void divide_row(const WindowPoolArgs& args, const Span* spans, const double* sums, float* to) {
  using V = Vectors<Sum>;
  const std::int64_t stride = args.stride[2], rows = spans[0].counted * spans[1].counted, count = args.out[2];
  // Outputs whose windows are inside of the map, which all have as many elements.
  const std::int64_t last = args.in[2] - 1 - (args.kernel[2] - 1) * args.dilation[2] + args.begin[2];
  const std::int64_t low = min64(divided_up(args.begin[2], stride), count);
  const std::int64_t high = max64(low, min64(count, last < 0 ? 0 : (stride == 1 ? last : last / stride) + 1));
  const std::int64_t whole = rows * args.kernel[2];
  const double elements = static_cast<double>(whole);
  std::int64_t c = low;
  if ((whole & (whole - 1)) == 0)  // its inverse is exact
    for (const double inverse = 1 / elements; c + V::kCount <= high; c += V::kCount)
      V::store_narrow(to + c, V::load(sums + c) * inverse);
  for (; c + V::kCount <= high; c += V::kCount) V::store_narrow(to + c, V::load(sums + c) / elements);
  for (; c < high; ++c) to[c] = static_cast<float>(sums[c] / elements);
  const auto divide = [&](std::int64_t at) {
    to[at] = static_cast<float>(sums[at] / static_cast<double>(rows * span_of(args, 2, at).counted));
  };
  for (c = 0; c < low; ++c) divide(c);
  for (c = high; c < count; ++c) divide(c);
}

// Sets the padding of the line in scratch, which stays.
void start_line(const WindowPoolArgs& args, void* scratch) {
  for (std::int64_t i = 0; i < args.line; ++i) {
    if (args.op == WindowPoolOp::kMax)
      static_cast<float*>(scratch)[i] = Maximum<float>::begin();
    else
      static_cast<double*>(scratch)[i] = Sum::begin();
  }
}

template <class T>
void pool_row(const WindowPoolArgs& args, const T* map, const Span* spans, void* scratch, T* to) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (args.line > 0 && args.op == WindowPoolOp::kMax)
      return fold_row<Maximum<float>>(args, map, spans, static_cast<float*>(scratch), to);
    if (args.line > 0) {
      double* const sums = static_cast<double*>(scratch) + args.line;
      fold_row<Sum>(args, map, spans, static_cast<double*>(scratch), sums);
      return divide_row(args, spans, sums, to);
    }
    double* const line = static_cast<double*>(scratch);
    if (args.op == WindowPoolOp::kMean) return pool_row<T, Sum>(args, map, spans, line, to);
    if (args.op == WindowPoolOp::kNorm && args.power == 1) return pool_row<T, AbsoluteSum>(args, map, spans, line, to);
    if (args.op == WindowPoolOp::kNorm && args.power == 2) return pool_row<T, SquareSum>(args, map, spans, line, to);
    if (args.op == WindowPoolOp::kNorm) return pool_row<T, PowerSum>(args, map, spans, line, to);
  }
  pool_row<T, Maximum<T>>(args, map, spans, static_cast<T*>(scratch), to);
}

template <class T>
void pool(const WindowPoolArgs& args, void* const* buffers, const KernelContext& context) {
  const std::int64_t pixels = args.in[0] * args.in[1] * args.in[2];
  const WorkRange range = split_work(args.maps * args.out[0] * args.out[1], context.worker, context.workers);
  if (range.begin >= range.end) return;
  start_line(args, context.scratch);
  // Positions are advanced rather than computed: a division takes as long as several outputs.
  std::int64_t map = range.begin / (args.out[0] * args.out[1]), d = range.begin / args.out[1] % args.out[0];
  std::int64_t h = range.begin % args.out[1];
  const auto advance = [&] {
    if (++h < args.out[1]) return;
    h = 0;
    if (++d < args.out[0]) return;
    d = 0;
    ++map;
  };
  for (std::int64_t i = range.begin; i < range.end; ++i, advance()) {
    Span spans[3] = {span_of(args, 0, d), span_of(args, 1, h), {}};
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
