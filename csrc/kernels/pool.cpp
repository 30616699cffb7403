// max_pool_f32, average_pool_f32 and the same on bf16 maps, and max_pool_u8 and max_pool_i8: pooling on NCHWc16; for
// global pooling, the kernel has the size of the map. Sums are f32.
//
// Operands: x, y; element alignment; y must not overlap x. Split over (image, channel block, output row). A NaN in a
// window makes its maximum NaN. A window entirely outside the input yields -inf (maximum) or zero (average).
#include "kernels/pool.hpp"

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

template <class Map>
struct Window {
  const Map* x;  // first tap inside the input
  std::int64_t rows, cols;
  std::int64_t row_step, col_step;
};

// Four partial results, so that a large window is not one chain of dependent additions.
template <class Map>
ENGINE_INLINE Vec sum(const Window<Map>& window) {
  Vec partial[4] = {zero(), zero(), zero(), zero()};
  const Map* row = window.x;
  for (std::int64_t r = 0; r < window.rows; ++r, row += window.row_step) {
    const Map* x = row;
    std::int64_t c = 0;
    for (; c + 4 <= window.cols; c += 4, x += 4 * window.col_step)
      for (int i = 0; i < 4; ++i) partial[i] += load(x + i * window.col_step);
    for (; c < window.cols; ++c, x += window.col_step) partial[0] += load(x);
  }
  return (partial[0] + partial[1]) + (partial[2] + partial[3]);
}

// `kCols`: the columns of the window; 0: not known at compile time. A comparison that propagates NaNs would make a
// whole window one dependency chain, so NaNs are detected separately.
template <int kCols, class Map>
ENGINE_INLINE Vec maximum(const Window<Map>& window) {
  const std::int64_t cols = kCols > 0 ? kCols : window.cols;
  Vec best = broadcast(-__builtin_inff());
  VecInt is_nan = {};
  const Map* row = window.x;
  for (std::int64_t r = 0; r < window.rows; ++r, row += window.row_step) {
    const Map* x = row;
#pragma GCC unroll 3
    for (std::int64_t c = 0; c < cols; ++c, x += window.col_step) {
      const Vec value = load(x);
      is_nan |= value != value;
      best = max(value, best);
    }
  }
  return is_nan ? broadcast(__builtin_nanf("")) : best;
}

// The positions start + i * dilation, 0 <= i < kernel, in [low, high): the first i and their number.
ENGINE_INLINE WorkRange taps(std::int64_t start, std::int64_t kernel, std::int64_t dilation, std::int64_t low,
                             std::int64_t high) {
  std::int64_t begin = start < low ? (low - start + dilation - 1) / dilation : 0;
  std::int64_t end = start >= high ? 0 : (high - start + dilation - 1) / dilation;
  if (end > kernel) end = kernel;
  if (begin > end) begin = end;
  return {begin, end};
}

// One row of outputs; the windows of outputs `inner.begin` to `inner.end` have all their columns in the input.
template <class Map>
struct Row {
  const PoolArgs* args;
  const Map* map;
  Map* out;
  std::int64_t top;
  WorkRange rows, counted_rows, inner;
};

ENGINE_INLINE WorkRange inner_outputs(const ConvShape& s) {
  const std::int64_t reach = (s.kernel_w - 1) * s.dilation_w, last = s.in_w - 1 - reach + s.pad_left;
  std::int64_t begin = (s.pad_left + s.stride_w - 1) / s.stride_w, end = last < 0 ? 0 : last / s.stride_w + 1;
  if (end > s.out_w) end = s.out_w;
  if (begin > end) begin = end;
  return {begin, end};
}

// The same for bytes, 16 channels at once.
template <class Element>
struct ByteMaximum {
  typedef Element Lanes __attribute__((vector_size(16), aligned(1), may_alias));
  static ENGINE_ALWAYS_INLINE void run(const Window<Element>& window, Element* out) {
    Lanes best = (sizeof(Element) && Element(-1) < 0 ? -128 : 0) - Lanes{};
    const Element* row = window.x;
    for (std::int64_t r = 0; r < window.rows; ++r, row += window.row_step)
      for (std::int64_t c = 0; c < window.cols; ++c) {
        const Lanes value = *reinterpret_cast<const Lanes*>(row + c * window.col_step);
        best = value > best ? value : best;
      }
    *reinterpret_cast<Lanes*>(out) = best;
  }
};

template <bool kAverage, int kCols, class Map>
ENGINE_INLINE void pool_outputs(const Row<Map>& row, std::int64_t begin, std::int64_t end) {
  const PoolArgs& args = *row.args;
  const ConvShape& s = args.shape;
  for (std::int64_t ow = begin; ow < end; ++ow) {
    const std::int64_t left = ow * s.stride_w - s.pad_left;
    const bool is_inner = kCols > 0 || (ow >= row.inner.begin && ow < row.inner.end);
    const WorkRange cols = is_inner ? WorkRange{0, s.kernel_w} : taps(left, s.kernel_w, s.dilation_w, 0, s.in_w);
    const std::int64_t at = (row.top + row.rows.begin * s.dilation_h) * s.in_w + left + cols.begin * s.dilation_w;
    Map* out = row.out + ow * 16;
    if constexpr (sizeof(Map) == 1) {
      ByteMaximum<Map>::run({row.map + at * 16, row.rows.end - row.rows.begin, cols.end - cols.begin,
                             s.dilation_h * s.in_w * 16, s.dilation_w * 16},
                            out);
    } else {
      for (int l = 0; l < 16; l += kLanes) {
        const Window<Map> window = {row.map + at * 16 + l, row.rows.end - row.rows.begin, cols.end - cols.begin,
                                    s.dilation_h * s.in_w * 16, s.dilation_w * 16};
        if constexpr (kAverage) {
          const WorkRange counted =
              args.counts_padding ? taps(left, s.kernel_w, s.dilation_w, -s.pad_left, s.in_w + args.pad_right) : cols;
          const std::int64_t count = (row.counted_rows.end - row.counted_rows.begin) * (counted.end - counted.begin);
          store(out + l, count == 0 ? zero() : sum(window) / static_cast<float>(count));
        } else {
          store(out + l, maximum<kCols>(window));
        }
      }
    }
  }
}

// Outputs and columns of windows whose maxima by column are kept.
constexpr std::int64_t kOutputs = 16, kWidest = 16;

// A row of maxima of wide windows that overlap: a maximum of each column, of which each output joins `kernel_w`. The
// largest magnitude shows whether there was a NaN: as an integer, it is above that of infinity.
template <class Map>
void maximum_row(const Row<Map>& row) {
  const ConvShape& s = row.args->shape;
  const Map* const first = row.map + (row.top + row.rows.begin * s.dilation_h) * s.in_w * 16;
  const std::int64_t row_step = s.dilation_h * s.in_w * 16, rows = row.rows.end - row.rows.begin;
  for (int l = 0; l < 16; l += kLanes)
    for (std::int64_t begin = 0; begin < s.out_w; begin += kOutputs) {
      const std::int64_t count = min64(kOutputs, s.out_w - begin), left = begin - s.pad_left;
      Vec best[kOutputs + kWidest];
      VecInt magnitude[kOutputs + kWidest];
      for (std::int64_t c = 0; c < count + s.kernel_w - 1; ++c) {
        Vec largest = broadcast(-__builtin_inff());
        VecInt bits = {};
        const bool is_inside = left + c >= 0 && left + c < s.in_w;
        const Map* x = is_inside ? first + (left + c) * 16 + l : first;
        for (std::int64_t r = 0; is_inside && r < rows; ++r, x += row_step) {
          const Vec value = load(x);
          const VecInt absolute = (VecInt)value & 0x7fffffff;
          largest = max(value, largest);
          bits = absolute > bits ? absolute : bits;
        }
        best[c] = largest;
        magnitude[c] = bits;
      }
      for (std::int64_t o = 0; o < count; ++o) {
        Vec largest = best[o];
        VecInt bits = magnitude[o];
        for (std::int64_t c = o + 1; c < o + s.kernel_w; ++c) {
          largest = max(best[c], largest);
          bits = magnitude[c] > bits ? magnitude[c] : bits;
        }
        store(row.out + (begin + o) * 16 + l, bits > 0x7f800000 ? broadcast(__builtin_nanf("")) : largest);
      }
    }
}

template <bool kAverage, class Map>
void pool_row(const Row<Map>& row) {
  const ConvShape& s = row.args->shape;
  if constexpr (!kAverage && sizeof(Map) > 1)
    if (s.kernel_w > 3 && s.kernel_w <= kWidest && s.stride_w == 1 && s.dilation_w == 1) return maximum_row(row);
  if (kAverage || (s.kernel_w != 2 && s.kernel_w != 3)) return pool_outputs<kAverage, 0>(row, 0, s.out_w);
  pool_outputs<false, 0>(row, 0, row.inner.begin);
  if (s.kernel_w == 2)
    pool_outputs<false, 2>(row, row.inner.begin, row.inner.end);
  else
    pool_outputs<false, 3>(row, row.inner.begin, row.inner.end);
  pool_outputs<false, 0>(row, row.inner.end, s.out_w);
}

template <bool kAverage, class Map>
void pool(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PoolArgs& args = *static_cast<const PoolArgs*>(raw_args);
  const Map* x = static_cast<const Map*>(buffers[0]);
  Map* y = static_cast<Map*>(buffers[1]);
  const ConvShape& s = args.shape;
  const std::int64_t blocks = (s.in_channels + 15) / 16;
  const WorkRange range = split_work(s.batch * blocks * s.out_h, context.worker, context.workers);
  Row<Map> row = {};
  row.args = &args;
  row.inner = inner_outputs(s);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / (blocks * s.out_h), block = i / s.out_h % blocks, oh = i % s.out_h;
    row.map = x + n * args.x_batch + block * s.in_h * s.in_w * 16;
    row.out = y + n * args.y_batch + (block * s.out_h + oh) * s.out_w * 16;
    row.top = oh * s.stride_h - s.pad_top;
    row.rows = taps(row.top, s.kernel_h, s.dilation_h, 0, s.in_h);
    row.counted_rows =
        args.counts_padding ? taps(row.top, s.kernel_h, s.dilation_h, -s.pad_top, s.in_h + args.pad_bottom) : row.rows;
    pool_row<kAverage>(row);
  }
}

}  // namespace

extern const KernelEntry pool_kernels[] = {{"max_pool_f32", pool<false, float>, nullptr},
                                           {"average_pool_f32", pool<true, float>, nullptr},
                                           {"max_pool_bf16", pool<false, Bf16>, nullptr},
                                           {"average_pool_bf16", pool<true, Bf16>, nullptr},
                                           {"max_pool_u8", pool<false, std::uint8_t>, nullptr},
                                           {"max_pool_i8", pool<false, std::int8_t>, nullptr},
                                           {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
