// resize_nearest (elements of any size), resize_f32 (weighted sums): see resize.hpp.
//
// Operands: source, destination; element alignment; they must not overlap. Split over rows of the destination. A row of
// the destination is computed as a weighted sum of source rows, in scratch, and then of the columns of that sum.
#include "kernels/resize.hpp"

#include <cstring>

#include "simd/shuffle.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE const std::int32_t* rows_of(const ResizeArgs& args) {
  return reinterpret_cast<const std::int32_t*>(&args + 1);
}
ENGINE_INLINE const std::int32_t* columns_of(const ResizeArgs& args) {
  return rows_of(args) + args.out_h * resize_tap_words(args.taps);
}

// Entry `at` of a table of `taps`.
ENGINE_INLINE ResizeTap tap_of(const std::int32_t* table, std::int64_t at, std::int64_t taps) {
  const std::int32_t* const words = table + at * resize_tap_words(taps);
  return {words, reinterpret_cast<const float*>(words + taps), words[2 * taps]};
}

void fill_bytes(char* to, std::int64_t bytes, std::int64_t pattern) {
  std::int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) std::memcpy(to + i, &pattern, 8);
  if (i < bytes) std::memcpy(to + i, &pattern, static_cast<std::size_t>(bytes - i));
}

template <int kBytes>
ENGINE_INLINE void nearest_row(const ResizeArgs& args, const char* from, char* to, std::int64_t bytes) {
  const std::int32_t* const columns = columns_of(args);
  const std::int64_t block = kBytes > 0 ? kBytes : bytes;
  for (std::int64_t x = 0; x < args.out_w; ++x) {
    const std::int64_t at = columns[x * resize_tap_words(1)];
    if (at < 0)
      fill_bytes(to + x * block, block, args.pattern);
    else
      std::memcpy(to + x * block, from + at * block, static_cast<std::size_t>(block));
  }
}

// How often each column of four bytes is repeated, if it is 2, 3, 4 or 8 times, in order; otherwise 0.
int repeats_of(const ResizeArgs& args) {
  const std::int64_t times = args.in_w > 0 ? args.out_w / args.in_w : 0;
  if ((times != 2 && times != 3 && times != 4 && times != 8) || times * args.in_w != args.out_w) return 0;
  for (std::int64_t x = 0; x < args.out_w; ++x)
    if (columns_of(args)[x * resize_tap_words(1)] != x / times) return 0;
  return static_cast<int>(times);
}

// Elements of four bytes of any alignment.
typedef float VecAnywhere __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));

template <int kTimes>
ENGINE_INLINE void repeat_lanes(const char* from, char* to) {
  const Vec values = *reinterpret_cast<const VecAnywhere*>(from);
#pragma GCC unroll 8
  for (int part = 0; part < kTimes; ++part) {
    VecInt index = {};
    for (int lane = 0; lane < kLanes; ++lane) index[lane] = (part * kLanes + lane) / kTimes;
    *reinterpret_cast<VecAnywhere*>(to + part * kVectorBytes) = ENGINE_SHUFFLE(values, index);
  }
}

// Each element of a row kTimes. The last vector overlaps the one before.
template <int kTimes>
void repeat_row(const char* from, char* to, std::int64_t count) {
  if (count < kLanes) {
    for (std::int64_t x = 0; x < count; ++x)
      for (int part = 0; part < kTimes; ++part) std::memcpy(to + 4 * (kTimes * x + part), from + 4 * x, 4);
    return;
  }
  for (std::int64_t x = 0; x + kLanes <= count; x += kLanes) repeat_lanes<kTimes>(from + 4 * x, to + 4 * kTimes * x);
  repeat_lanes<kTimes>(from + 4 * (count - kLanes), to + 4 * kTimes * (count - kLanes));
}

void repeat_row(int times, const char* from, char* to, std::int64_t count) {
  if (times == 2) return repeat_row<2>(from, to, count);
  if (times == 3) return repeat_row<3>(from, to, count);
  if (times == 4) return repeat_row<4>(from, to, count);
  repeat_row<8>(from, to, count);
}

void resize_nearest(const void* arguments, void* const* buffers, const KernelContext& context) {
  const ResizeArgs& args = *static_cast<const ResizeArgs*>(arguments);
  const std::int64_t block = args.inner * args.element;
  const std::int32_t* const rows = rows_of(args);
  const WorkRange range = split_work(args.maps * args.out_h, context.worker, context.workers);
  const int times = block == 4 && args.element == 4 && range.begin < range.end ? repeats_of(args) : 0;
  const char* map = static_cast<const char*>(buffers[0]);
  if (range.begin < range.end) map += range.begin / args.out_h * args.in_h * args.in_w * block;
  std::int64_t row = range.begin < range.end ? range.begin % args.out_h : 0;  // a division for each would take longest
  for (std::int64_t i = range.begin; i < range.end; ++i, ++row) {
    if (row == args.out_h) {
      row = 0;
      map += args.in_h * args.in_w * block;
    }
    const std::int64_t at = rows[row * resize_tap_words(1)];
    char* const to = static_cast<char*>(buffers[1]) + i * args.out_w * block;
    if (at < 0) {
      fill_bytes(to, args.out_w * block, args.pattern);
      continue;
    }
    const char* const from = map + at * args.in_w * block;
    if (times > 0) {
      repeat_row(times, from, to, args.in_w);
    } else if (block < 64 && i > range.begin && row > 0 && at == rows[(row - 1) * resize_tap_words(1)]) {
      std::memcpy(to, to - args.out_w * block, static_cast<std::size_t>(args.out_w * block));
    } else if (block == 4) {
      nearest_row<4>(args, from, to, block);
    } else if (block == 64) {
      nearest_row<64>(args, from, to, block);
    } else {
      nearest_row<0>(args, from, to, block);
    }
  }
}

// The sum of weight[k] * from[index[k] * stride + i], for `count` floats.
template <int kTaps>
ENGINE_INLINE void combine(const float* source, std::int64_t stride, const ResizeTap& tap, float* to,
                           std::int64_t count) {
  const float* from[kTaps];
  float weight[kTaps];
  Vec weights[kTaps];
  for (int k = 0; k < kTaps; ++k) {
    from[k] = source + tap.index[k] * stride;
    weight[k] = tap.weight[k];
    weights[k] = broadcast(weight[k]);
  }
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vec sum = weights[0] * load(from[0] + i);
    for (int k = 1; k < kTaps; ++k) sum = fma(weights[k], load(from[k] + i), sum);
    store(to + i, sum);
  }
  for (; i < count; ++i) {
    float sum = weight[0] * from[0][i];
    for (int k = 1; k < kTaps; ++k) sum += weight[k] * from[k][i];
    to[i] = sum;
  }
}

// The same for any number of taps; taps with weight zero are not read.
void combine_many(const float* source, std::int64_t stride, const ResizeTap& tap, std::int64_t taps, float* to,
                  std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vec sum = broadcast(0.0f);
    for (std::int64_t k = 0; k < taps; ++k) {
      if (tap.weight[k] != 0) sum = fma(broadcast(tap.weight[k]), load(source + tap.index[k] * stride + i), sum);
    }
    store(to + i, sum);
  }
  for (; i < count; ++i) {
    float sum = 0;
    for (std::int64_t k = 0; k < taps; ++k) {
      if (tap.weight[k] != 0) sum += tap.weight[k] * source[tap.index[k] * stride + i];
    }
    to[i] = sum;
  }
}

// As `combine`; kTaps = 0 means `taps` taps.
template <int kTaps>
ENGINE_INLINE void combine_taps(const float* source, std::int64_t stride, const ResizeTap& tap, std::int64_t taps,
                                float* to, std::int64_t count) {
  if constexpr (kTaps > 0)
    combine<kTaps>(source, stride, tap, to, count);
  else
    combine_many(source, stride, tap, taps, to, count);
}

// Columns of single floats; if kHasSingle, one tap may have all the weight.
template <int kTaps, bool kHasSingle>
ENGINE_INLINE void combine_floats(const std::int32_t* columns, const float* row, float* to, std::int64_t begin,
                                  std::int64_t end) {
  for (std::int64_t x = begin; x < end; ++x) {
    const ResizeTap tap = tap_of(columns, x, kTaps);
    float sum = tap.weight[0] * row[tap.index[0]];
    for (int k = 1; k < kTaps; ++k) sum += tap.weight[k] * row[tap.index[k]];
    if (kHasSingle && __builtin_expect(tap.only >= 0, 0)) sum = row[tap.index[tap.only]];
    to[x] = sum;
  }
}

void fill_floats(float* to, std::int64_t count, float value) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = value;
}

// Columns [begin, end) of one row of the destination, none of them outside; `scratch` holds columns [low, high) of the
// combined source row.
template <int kTaps>
void resize_columns(const ResizeArgs& args, const float* map, const ResizeTap& row, float* to, float* scratch,
                    std::int64_t begin, std::int64_t end) {
  const std::int64_t taps = kTaps > 0 ? kTaps : args.taps, inner = args.inner;
  const std::int32_t* const columns = columns_of(args);
  // Indices ascend from tap to tap, and usually from column to column.
  const std::int64_t low = args.ascends != 0 ? tap_of(columns, begin, taps).index[0] : 0;
  const std::int64_t high = args.ascends != 0 ? tap_of(columns, end - 1, taps).index[taps - 1] + 1 : args.in_w;
  const std::int64_t row_floats = args.in_w * inner;
  const float* const source = map + low * inner;
  const float* combined = scratch;
  if (row.only >= 0)
    combined = source + row.index[row.only] * row_floats;
  else
    combine_taps<kTaps>(source, row_floats, row, taps, scratch, (high - low) * inner);
  const float* const first = combined - low * inner;
  if constexpr (kTaps > 0) {
    if (inner == 1 && args.has_single_columns == 0) return combine_floats<kTaps, false>(columns, first, to, begin, end);
    if (inner == 1) return combine_floats<kTaps, true>(columns, first, to, begin, end);
  }
  for (std::int64_t x = begin; x < end; ++x) {
    const ResizeTap tap = tap_of(columns, x, taps);
    if (tap.only >= 0) {
      std::memcpy(to + x * inner, first + tap.index[tap.only] * inner, static_cast<std::size_t>(inner) * sizeof(float));
      continue;
    }
    combine_taps<kTaps>(first, inner, tap, taps, to + x * inner, inner);
  }
}

template <int kTaps>
void resize_rows(const ResizeArgs& args, void* const* buffers, const KernelContext& context) {
  const std::int64_t taps = kTaps > 0 ? kTaps : args.taps;
  const std::int32_t* const columns = columns_of(args);
  const std::int64_t in_map = args.in_h * args.in_w * args.inner, out_row = args.out_w * args.inner;
  const WorkRange range = split_work(args.maps * args.out_h, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const ResizeTap row = tap_of(rows_of(args), i % args.out_h, taps);
    const float* const map = static_cast<const float*>(buffers[0]) + i / args.out_h * in_map;
    float* const to = static_cast<float*>(buffers[1]) + i * out_row;
    if (row.index[0] < 0) {
      fill_floats(to, out_row, args.outside);
      continue;
    }
    for (std::int64_t x = 0; x < args.out_w;) {
      std::int64_t end = x + 1;
      if (tap_of(columns, x, taps).index[0] < 0) {
        fill_floats(to + x * args.inner, args.inner, args.outside);
      } else {
        while (end < args.out_w && end < x + args.chunk && tap_of(columns, end, taps).index[0] >= 0) ++end;
        resize_columns<kTaps>(args, map, row, to, static_cast<float*>(context.scratch), x, end);
      }
      x = end;
    }
  }
}

void resize_f32(const void* arguments, void* const* buffers, const KernelContext& context) {
  const ResizeArgs& args = *static_cast<const ResizeArgs*>(arguments);
  if (args.taps == 2)
    resize_rows<2>(args, buffers, context);
  else if (args.taps == 4)
    resize_rows<4>(args, buffers, context);
  else
    resize_rows<0>(args, buffers, context);
}

}  // namespace

extern const KernelEntry resize_kernels[] = {
    {"resize_nearest", resize_nearest, nullptr}, {"resize_f32", resize_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
