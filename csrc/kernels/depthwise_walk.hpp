// Depthwise convolution on NCHWc16, for any element type. Included by kernel files only.
#pragma once

#include "kernels/activation.hpp"
#include "kernels/depthwise.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTile = 14;
#else
constexpr int kTile = 4;
#endif

// Zeros for taps outside the map.
template <class Map>
struct Zeros {
  alignas(64) static constexpr Map kValues[16] = {};
};

template <class Map>
struct Row {
  const Map* x;        // the input of the first kernel row inside the map, at column 0
  std::int64_t x_row;  // between kernel rows
  const float* w;      // of that kernel row
  int rows;            // the number of kernel rows inside the map
  std::int64_t in_w;
  std::int64_t stride, dilation, kernel_w;
  void* y;              // of Map, or of f32 if is_aside
  const Map* residual;  // added before the activation, or null
  Vec bias, scale, low, high;
  bool has_scale, is_aside;
};

// The epilogue's parameters, in registers: for the compiler, stores might change the fields of the row.
template <class Map>
struct Ending {
  Vec bias, scale, low, high;
  const Map* residual;
  void* y;
  bool has_scale, is_aside;
};
template <class Map>
ENGINE_INLINE Ending<Map> ending_of(const Row<Map>& row) {
  return {row.bias, row.scale, row.low, row.high, row.residual, row.y, row.has_scale, row.is_aside};
}
// Without a scale, sums start from the bias, which costs nothing.
template <class Map>
ENGINE_INLINE Vec start_of(const Row<Map>& row) {
  return row.has_scale ? zero() : row.bias;
}
template <class Map>
ENGINE_INLINE void finish_pixel(const Ending<Map>& end, std::int64_t pixel, Vec sum) {
  Vec value = end.has_scale ? fma(sum, end.scale, end.bias) : sum;
  if (end.residual) value += load(end.residual + pixel * 16);
  value = min(end.high, max(end.low, value));
  if (end.is_aside)
    store(static_cast<float*>(end.y) + pixel * 16, value);
  else
    store(static_cast<Map*>(end.y) + pixel * 16, value);
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Keeps a loaded vector in a register; the compiler would otherwise load it again for each use.
ENGINE_INLINE void keep(Vec& value) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(value));
#elif defined(__x86_64__)
  __asm__("" : "+x"(value));
#elif defined(__aarch64__)
  __asm__("" : "+w"(value));
#else
  (void)value;
#endif
}

// Stores output pixels [first, first + kPixels) after the epilogue.
template <int kPixels, class Map>
ENGINE_INLINE void finish_tile(const Row<Map>& row, std::int64_t first, Vec (&sum)[kPixels]) {
  // One loop for each part of the epilogue: one condition for each, and not for each pixel.
  const Ending<Map> end = ending_of(row);
  if (end.has_scale) {
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) sum[p] = fma(sum[p], end.scale, end.bias);
  }
  if (end.residual) {
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) sum[p] += load(end.residual + (first + p) * 16);
  }
  if constexpr (sizeof(Map) != sizeof(float)) {
    if (end.is_aside) {
      float* y = static_cast<float*>(end.y) + first * 16;
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) store(y + p * 16, min(end.high, max(end.low, sum[p])));
      return;
    }
  }
  Map* y = static_cast<Map*>(end.y) + first * 16;
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) store(y + p * 16, min(end.high, max(end.low, sum[p])));
}

// Output pixels [first, first + kPixels), whose first tap is input column `start`. kChecked: some taps lie outside.
template <int kKernel, int kStride, int kPixels, bool kChecked, class Map>
ENGINE_NOINLINE void tile(const Row<Map>& row, std::int64_t first, std::int64_t start) {
  constexpr int kSpan = (kPixels - 1) * kStride + kKernel;
  Vec sum[kPixels];
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) sum[p] = start_of(row);
  const Map* x = row.x + start * 16;
  const float* w = row.w;
  for (int r = 0; r < row.rows; ++r, x += row.x_row, w += kKernel * 16) {
    Vec in[kSpan];
#pragma GCC unroll 32
    for (int i = 0; i < kSpan; ++i) {
      const Map* at = x + i * 16;
      if (kChecked && static_cast<std::uint64_t>(start + i) >= static_cast<std::uint64_t>(row.in_w))
        at = Zeros<Map>::kValues;
      in[i] = load(at);
      if constexpr (kSpan + kPixels + 1 <= kRegisters) keep(in[i]);
    }
#pragma GCC unroll 7
    for (int k = 0; k < kKernel; ++k) {
      const Vec weight = load(w + k * 16);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) sum[p] = fma(in[p * kStride + k], weight, sum[p]);
    }
  }
  finish_tile<kPixels>(row, first, sum);
}

template <int kKernel, int kStride, int kPixels, class Map>
void tail(const Row<Map>& row, int pixels, std::int64_t first, std::int64_t start) {
  if constexpr (kPixels > 0) {
    if (pixels == kPixels) return tile<kKernel, kStride, kPixels, true>(row, first, start);
    tail<kKernel, kStride, kPixels - 1>(row, pixels, first, start);
  }
}

template <int kKernel, int kStride, class Map>
void run_row(const Row<Map>& row, std::int64_t out_w, std::int64_t pad) {
  std::int64_t pixel = 0;
  for (; pixel + kTile <= out_w; pixel += kTile) {
    const std::int64_t start = pixel * kStride - pad;
    if (start >= 0 && start + (kTile - 1) * kStride + kKernel <= row.in_w)
      tile<kKernel, kStride, kTile, false>(row, pixel, start);
    else
      tile<kKernel, kStride, kTile, true>(row, pixel, start);
  }
  tail<kKernel, kStride, kTile - 1>(row, static_cast<int>(out_w - pixel), pixel, pixel * kStride - pad);
}

// The same of any width of the kernel and any dilation, for a stride of 1.
template <int kPixels, bool kChecked, class Map>
ENGINE_NOINLINE void dilated_tile(const Row<Map>& row, std::int64_t first, std::int64_t start) {
  Vec sum[kPixels];
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) sum[p] = start_of(row);
  const Map* x = row.x;
  const float* w = row.w;
  for (int r = 0; r < row.rows; ++r, x += row.x_row)
    for (std::int64_t k = 0; k < row.kernel_w; ++k, w += 16) {
      const std::int64_t column = start + k * row.dilation;
      if (kChecked && (column >= row.in_w || column + kPixels <= 0)) continue;
      const Vec weight = load(w);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) {
        const Map* at = x + (column + p) * 16;
        if (kChecked && static_cast<std::uint64_t>(column + p) >= static_cast<std::uint64_t>(row.in_w))
          at = Zeros<Map>::kValues;
        sum[p] = fma(load(at), weight, sum[p]);
      }
    }
  finish_tile<kPixels>(row, first, sum);
}

template <class Map>
void run_dilated_row(const Row<Map>& row, std::int64_t out_w, std::int64_t pad) {
  constexpr int kMost = kRegisters == 32 ? 14 : 8, kFew = 4;
  std::int64_t pixel = 0;
  for (; pixel + kMost <= out_w; pixel += kMost) {
    const std::int64_t start = pixel - pad;
    if (start >= 0 && start + kMost - 1 + (row.kernel_w - 1) * row.dilation < row.in_w)
      dilated_tile<kMost, false>(row, pixel, start);
    else
      dilated_tile<kMost, true>(row, pixel, start);
  }
  for (; pixel + kFew <= out_w; pixel += kFew) dilated_tile<kFew, true>(row, pixel, pixel - pad);
  for (; pixel < out_w; ++pixel) dilated_tile<1, true>(row, pixel, pixel - pad);
}

template <class Map>
void run_any_row(const Row<Map>& row, std::int64_t out_w, std::int64_t pad) {
  const Ending<Map> end = ending_of(row);
  for (std::int64_t pixel = 0; pixel < out_w; ++pixel) {
    Vec sum = start_of(row);
    for (int r = 0; r < row.rows; ++r)
      for (std::int64_t k = 0; k < row.kernel_w; ++k) {
        const std::int64_t column = pixel * row.stride - pad + k * row.dilation;
        if (column < 0 || column >= row.in_w) continue;
        sum = fma(load(row.x + r * row.x_row + column * 16), load(row.w + (r * row.kernel_w + k) * 16), sum);
      }
    finish_pixel(end, pixel, sum);
  }
}

template <class Map>
void run_any(const Row<Map>& row, std::int64_t out_w, std::int64_t pad) {
  if (row.dilation > 1 && row.stride == 1) return run_dilated_row(row, out_w, pad);
  const std::int64_t shape = row.dilation == 1 ? row.kernel_w * 10 + row.stride : 0;
  switch (shape) {
    case 31:
      return run_row<3, 1>(row, out_w, pad);
    case 32:
      return run_row<3, 2>(row, out_w, pad);
    case 51:
      return run_row<5, 1>(row, out_w, pad);
    case 52:
      return run_row<5, 2>(row, out_w, pad);
    case 71:
      return run_row<7, 1>(row, out_w, pad);
    case 72:
      return run_row<7, 2>(row, out_w, pad);
    default:
      return run_any_row(row, out_w, pad);
  }
}

// x, y and the residual have elements of type Map. Rows are computed in place, or aside, as f32 in scratch, so that a
// bf16 map is rounded only once, after the whole epilogue (see depthwise_finishes).
template <class Map>
void run_depthwise(const DepthwiseArgs& args, void* const* buffers, const KernelContext& context) {
  const ConvShape& s = args.shape;
  const EpilogueArgs& epilogue = args.epilogue;
  int operand = 0;
  const Map* x = static_cast<const Map*>(buffers[operand++]);
  const float* w = static_cast<const float*>(buffers[operand++]);
  const float* bias = args.operands.has_bias ? static_cast<const float*>(buffers[operand++]) : nullptr;
  const float* scale = args.operands.has_scale ? static_cast<const float*>(buffers[operand++]) : nullptr;
  const Map* residual = args.operands.has_residual ? static_cast<const Map*>(buffers[operand++]) : nullptr;
  Map* y = static_cast<Map*>(buffers[operand]);
  const bool is_clip = epilogue.activation == Activation::kClip;
  const bool finish = depthwise_finishes(args);

  Row<Map> row = {};
  row.in_w = s.in_w;
  row.x_row = s.dilation_h * s.in_w * 16;
  row.stride = s.stride_w;
  row.dilation = s.dilation_w;
  row.kernel_w = s.kernel_w;
  row.has_scale = scale != nullptr;
  row.is_aside = finish && sizeof(Map) != sizeof(float);
  row.low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  row.high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  const std::int64_t blocks = (s.out_channels + 15) / 16;
  const WorkRange range = split_work(s.batch * blocks * s.out_h, context.worker, context.workers);
  if (range.begin >= range.end) return;  // also if there are no rows
  // Positions are advanced rather than computed: a division takes as long as several outputs.
  std::int64_t n = range.begin / (blocks * s.out_h), block = range.begin / s.out_h % blocks, oh = range.begin % s.out_h;
  const auto advance = [&] {
    if (++oh < s.out_h) return;
    oh = 0;
    if (++block < blocks) return;
    block = 0;
    ++n;
  };
  for (std::int64_t i = range.begin; i < range.end; ++i, advance()) {
    const std::int64_t top = oh * s.stride_h - s.pad_top;
    std::int64_t begin = 0, end = s.kernel_h;
    while (begin < end && top + begin * s.dilation_h < 0) ++begin;
    while (begin < end && top + (end - 1) * s.dilation_h >= s.in_h) --end;
    row.rows = static_cast<int>(end - begin);
    const std::int64_t out = block * args.y_block + oh * s.out_w * 16;
    for (int l = 0; l < 16; l += kLanes) {
      row.x = x + n * args.x_batch + block * args.x_block + (top + begin * s.dilation_h) * s.in_w * 16 + l;
      row.w = w + (block * s.kernel_h + begin) * s.kernel_w * 16 + l;
      Map* to = y + n * args.y_batch + out + l;
      row.y = row.is_aside ? context.scratch : to;
      const Map* added = residual ? residual + n * args.residual_batch + out + l : nullptr;
      row.residual = epilogue.residual_after ? nullptr : added;
      row.bias = bias ? load(bias + block * 16 + l) : zero();
      row.scale = scale ? load(scale + block * 16 + l) : zero();
      run_any(row, s.out_w, s.pad_left);
      if (!finish) continue;
      float* computed = static_cast<float*>(row.y);
      const float* late = nullptr;
      if constexpr (sizeof(Map) == sizeof(float)) late = epilogue.residual_after ? added : nullptr;
      finish_column(epilogue, static_cast<int>(s.out_w), computed, 16, late, 16);
      if (!row.is_aside) continue;
      for (std::int64_t pixel = 0; pixel < s.out_w * 16; pixel += 16) {
        Vec value = load(computed + pixel);
        if (added && epilogue.residual_after) value += load(added + pixel);
        store(to + pixel, value);
      }
    }
  }
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
