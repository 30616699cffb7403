// conv_lanes_f32: see conv_lanes.hpp. Maps have float alignment; y must not overlap x or w; the residual may be y.
//
// A tile is some adjacent pixels of a vector of output channels. For each channel of a group, a vector is made of each
// input pixel: its lanes have that channel of their own groups. If all lanes belong to one group, it is a broadcast;
// otherwise a permutation of one or two vectors, which are all that prepare permits. It is multiplied with the weights
// of three kernel columns, for three outputs, so permutations take little of the time.
#include "kernels/conv_lanes.hpp"

#include "kernels/activation.hpp"
#include "simd/indices.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Registers hold the sums, three weights, an input and, with AVX, the indices of a permutation.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMaxPixels = tile_pixels(14);
#elif defined(__AVX__)
constexpr int kMaxPixels = tile_pixels(8);
#else
constexpr int kMaxPixels = tile_pixels(6);
#endif
constexpr int kTripleTaps = 3;
constexpr int kAnyStride = 0;

enum Kind : std::int32_t { kBroadcast, kOne, kTwo, kEach };

struct LanesCall {
  const float* x;  // the first pixel of the first kernel row inside the map, in block 0
  std::int64_t x_row;
  const float* w;  // of that kernel row
  const LaneSource* sources;
  std::int64_t depth;  // the number of sources
  std::int64_t rows;
  std::int64_t start, in_w;  // the first pixel's column, which may be outside
  std::int64_t kernel_w, stride, dilation;
  const float *bias, *scale, *residual;
  float* y;
  const EpilogueArgs* epilogue;
};

// Keeps a vector that several products share in a register; the compiler would otherwise load it for each.
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

struct BroadcastFetch {
  const float* first;
  ENGINE_ALWAYS_INLINE Vec operator()(std::int64_t at) const { return broadcast(first[at]); }
};
#if defined(__AVX__)
struct OneFetch {
  const float* first;
  VecInt index;
  ENGINE_ALWAYS_INLINE Vec operator()(std::int64_t at) const {
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_permutexvar_ps((__mmask16)-1, (__m512i)index, (__m512)load(first + at));
#else
    return (Vec)_mm256_permutevar8x32_ps((__m256)load(first + at), (__m256i)index);
#endif
  }
};
struct TwoFetch {
  const float *first, *second;
  VecInt index;
  ENGINE_ALWAYS_INLINE Vec operator()(std::int64_t at) const {
#if defined(__AVX512F__)
    return (Vec)_mm512_permutex2var_ps((__m512)load(first + at), (__m512i)index, (__m512)load(second + at));
#else
    const __m256 low = _mm256_permutevar8x32_ps((__m256)load(first + at), (__m256i)index);
    const __m256 high = _mm256_permutevar8x32_ps((__m256)load(second + at), (__m256i)index);
    return (Vec)_mm256_blendv_ps(low, high, (__m256)(index << 28));
#endif
  }
};
#else
struct EachFetch {
  const float* first;
  const std::int64_t* offset;
  ENGINE_ALWAYS_INLINE Vec operator()(std::int64_t at) const {
    const float* from = first + at;
    return Vec{from[offset[0]], from[offset[1]], from[offset[2]], from[offset[3]]};
  }
};
#endif

// Adds the products of one channel with kTaps adjacent kernel columns. Pixels of x are `step` floats apart, or adjacent
// if kTaps is more than 1; `inside` has a bit for each that is inside the map.
template <int kTaps, int kStride, int kPixels, class Fetch>
ENGINE_ALWAYS_INLINE void add_channel(const Fetch& fetch, std::int64_t step, const float* w, std::uint32_t inside,
                                      Vec (&sum)[kPixels]) {
  constexpr int kEvery = kTaps == 1 ? 1 : kStride, kSpan = (kPixels - 1) * kEvery + kTaps;
  Vec weight[kTaps];
#pragma GCC unroll 3
  for (int t = 0; t < kTaps; ++t) {
    weight[t] = load(w + t * 16);
    keep(weight[t]);
  }
  std::int64_t at = 0;
#pragma GCC unroll 32
  for (int i = 0; i < kSpan; ++i) {
    if (inside >> i & 1) {
      Vec value = fetch(kTaps > 1 ? i * 16 : kStride != kAnyStride ? i * kStride * 16 : at);
      if constexpr (kTaps > 1) keep(value);
#pragma GCC unroll 3
      for (int t = 0; t < kTaps; ++t) {
        const int p = (i - t) / kEvery;
        if (i >= t && (i - t) % kEvery == 0 && p < kPixels) sum[p] = fma(value, weight[t], sum[p]);
      }
    }
    if constexpr (kTaps == 1 && kStride == kAnyStride) at += step;
  }
}

// Adds the products of all channels with kTaps kernel columns of one row.
template <int kTaps, int kStride, int kPixels>
ENGINE_ALWAYS_INLINE void add_taps(const LanesCall& call, const float* x, const float* w, std::uint32_t inside,
                                   Vec (&sum)[kPixels]) {
  const std::int64_t step = call.stride * 16, w_step = call.kernel_w * 16;
  const LaneSource* source = call.sources;
  for (std::int64_t d = 0; d < call.depth; ++d, ++source, w += w_step) {
    const float* first = x + source->first;
    if (source->kind == kBroadcast) {
      add_channel<kTaps, kStride>(BroadcastFetch{first}, step, w, inside, sum);
#if defined(__AVX__)
    } else if (source->kind == kOne) {
      const VecInt index = (VecInt)load(reinterpret_cast<const float*>(source->index));
      add_channel<kTaps, kStride>(OneFetch{first, index}, step, w, inside, sum);
    } else {
      const VecInt index = (VecInt)load(reinterpret_cast<const float*>(source->index));
      add_channel<kTaps, kStride>(TwoFetch{first, x + source->second, index}, step, w, inside, sum);
#else
    } else {
      add_channel<kTaps, kStride>(EachFetch{first, source->offset}, step, w, inside, sum);
#endif
    }
  }
}

// The bits of `count` pixels of a row, `step` columns apart from column `start` on, that are inside 0..size.
ENGINE_INLINE std::uint32_t inside_bits(std::int64_t start, std::int64_t step, std::int64_t count, std::int64_t size) {
  if (start >= 0 && start + (count - 1) * step < size) return ~std::uint32_t{0} >> (32 - count);
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < count; ++i, start += step)
    if (start >= 0 && start < size) bits |= std::uint32_t{1} << i;
  return bits;
}

template <int kPixels, int kStride>
ENGINE_NOINLINE void tile(const LanesCall& call) {
  Vec sum[kPixels];
  const Vec begin = call.bias && !call.scale ? load(call.bias) : zero();
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) sum[p] = begin;
  const float *x = call.x, *w = call.w;
  for (std::int64_t r = 0; r < call.rows; ++r, x += call.x_row, w += call.depth * call.kernel_w * 16) {
    std::int64_t k = 0;
    if constexpr (kStride != kAnyStride) {
      constexpr int kSpan = (kPixels - 1) * kStride + kTripleTaps;
      for (; k + kTripleTaps <= call.kernel_w; k += kTripleTaps) {
        const std::uint32_t inside = inside_bits(call.start + k, 1, kSpan, call.in_w);
        if (inside) add_taps<kTripleTaps, kStride>(call, x + k * 16, w + k * 16, inside, sum);
      }
    }
    for (; k < call.kernel_w; ++k) {
      const std::int64_t column = k * call.dilation;
      const std::uint32_t inside = inside_bits(call.start + column, call.stride, kPixels, call.in_w);
      if (inside) add_taps<1, kStride>(call, x + column * 16, w + k * 16, inside, sum);
    }
  }

  const EpilogueArgs& epilogue = *call.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  const float* after = epilogue.residual_after ? call.residual : nullptr;
  const float* before = after ? nullptr : call.residual;
  const Vec low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  const Vec high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  if (call.scale) {
    const Vec scale = load(call.scale), bias = call.bias ? load(call.bias) : zero();
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) sum[p] = fma(sum[p], scale, bias);
  }
  if (before) {
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) sum[p] += load(before + p * 16);
  }
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) store(call.y + p * 16, min(high, max(low, sum[p])));
  if (!is_clip || after) finish_column(epilogue, kPixels, call.y, 16, after, 16);
}

using TileKernel = void (*)(const LanesCall& call);

// All sizes up to kSmallPixels, and some larger ones: a row has tiles of equal sizes, or of sizes that differ by one.
constexpr int kSmallPixels = 8;
template <int kStride, int kPixels>
constexpr TileKernel tile_or_null() {
  if constexpr (kPixels <= kSmallPixels || (kStride != kAnyStride && kPixels % 2 == 0))
    return &tile<kPixels, kStride>;
  else
    return nullptr;
}

template <int kStride, int... kPixels>
TileKernel pick(std::int64_t pixels, Indices<kPixels...>) {
  static constexpr TileKernel table[] = {tile_or_null<kStride, kPixels>()...};
  return table[pixels - 1];
}

// Null if there is no tile of that size. Tiles for three adjacent kernel columns at a time need strides that are known
// to the compiler.
TileKernel tile_of(const ConvShape& s, std::int64_t pixels) {
  const typename CountTo<kMaxPixels>::Type all;
  if (s.dilation_w == 1 && s.stride_w == 1) return pick<1>(pixels, all);
  if (s.dilation_w == 1 && s.stride_w == 2) return pick<2>(pixels, all);
  return pick<kAnyStride>(pixels, all);
}

// The tiles of a row: `wide` of `pixels` + 1 pixels, then the others of `pixels`.
struct RowTiles {
  std::int64_t count, pixels, wide;
  TileKernel narrow_tile, wide_tile;
};
RowTiles row_tiles(const ConvShape& s) {
  RowTiles row = {};
  for (std::int64_t most = kMaxPixels; row.narrow_tile == nullptr || row.wide_tile == nullptr; --most) {
    row.count = (s.out_w + most - 1) / most;
    row.pixels = s.out_w / row.count;
    row.wide = s.out_w % row.count;
    row.narrow_tile = tile_of(s, row.pixels);
    row.wide_tile = row.wide > 0 ? tile_of(s, row.pixels + 1) : row.narrow_tile;
  }
  return row;
}

// Fills in the sources of the lanes of output channels [first, first + kLanes).
void find_sources(const ConvShape& s, std::int64_t first, LaneSource* sources) {
  const std::int64_t in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  const std::int64_t map = s.in_h * s.in_w * 16;
  const auto place = [&](std::int64_t channel) { return channel / 16 * map + channel % 16; };
  std::int32_t channel[kLanes];
  for (int l = 0; l < kLanes; ++l)
    channel[l] = static_cast<std::int32_t>(min64(first + l, s.out_channels - 1) / out_group * in_group);
  for (std::int64_t d = 0; d < in_group; ++d, ++sources) {
    const std::int64_t low = channel[0], high = channel[kLanes - 1];
    if (low == high) {
      sources->kind = kBroadcast;
      sources->first = place(low);
    } else {
#if defined(__AVX__)
      const std::int32_t one = static_cast<std::int32_t>(low / kLanes * kLanes);
      const std::int32_t two = static_cast<std::int32_t>(high / kLanes * kLanes);
      sources->kind = one == two ? kOne : kTwo;
      sources->first = place(one);
      sources->second = place(two);
      for (int l = 0; l < kLanes; ++l)
        sources->index[l] = channel[l] < one + kLanes ? channel[l] - one : channel[l] - two + kLanes;
#else
      sources->kind = kEach;
      sources->first = 0;
      for (int l = 0; l < kLanes; ++l) sources->offset[l] = place(channel[l]);
#endif
    }
    for (int l = 0; l < kLanes; ++l) ++channel[l];
  }
}

// The kernel rows [begin, end) that are inside the map, from row `start` on.
ENGINE_INLINE WorkRange rows_inside(std::int64_t start, const ConvShape& s) {
  const std::int64_t d = s.dilation_h;
  const std::int64_t begin = min64(start < 0 ? (-start + d - 1) / d : 0, s.kernel_h);
  const std::int64_t end = start >= s.in_h ? 0 : min64((s.in_h - start + d - 1) / d, s.kernel_h);
  return {begin, max64(begin, end)};
}

// Tile `part` of `parts` prefetches its part of the weights of the next block of outputs, which are read from memory
// once.
ENGINE_INLINE void prefetch_weights(const float* from, std::int64_t count, std::int64_t part, std::int64_t parts) {
  const std::int64_t lines = count / 16, each = (lines + parts - 1) / parts;
  for (std::int64_t i = part * each, end = min64(i + each, lines); i < end; ++i)
    __builtin_prefetch(from + i * 16, 0, 2);
}

// Split over (image, block of outputs, row, tile).
void conv_lanes_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const LanesConvArgs& args = *static_cast<const LanesConvArgs*>(raw_args);
  const ConvShape& s = args.shape;
  if (s.out_w == 0) return;
  const float* x = static_cast<const float*>(buffers[0]);
  const float* w = static_cast<const float*>(buffers[1]);
  const float *bias = nullptr, *scale = nullptr, *residual = nullptr;
  int operand = 2;
  if (args.operands.has_bias) bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) residual = static_cast<const float*>(buffers[operand++]);
  float* y = static_cast<float*>(buffers[operand]);
  LaneSource* sources = static_cast<LaneSource*>(context.scratch);

  const std::int64_t blocks = (s.out_channels + 15) / 16, block_weights = pack_reduction(args.pack) * 16;
  const std::int64_t row_weights = args.pack.rows * s.kernel_w * 16, in_row = s.in_w * 16;
  const RowTiles row = row_tiles(s);

  LanesCall call = {};
  call.x_row = s.dilation_h * in_row;
  call.sources = sources;
  call.depth = args.pack.rows;
  call.in_w = s.in_w;
  call.kernel_w = s.kernel_w;
  call.stride = s.stride_w;
  call.dilation = s.dilation_w;
  call.epilogue = &args.epilogue;
  const std::int64_t block_tiles = s.out_h * row.count;
  const WorkRange range = split_work(s.batch * blocks * block_tiles, context.worker, context.workers);
  for (std::int64_t first = range.begin; first < range.end;) {
    const std::int64_t n = first / (blocks * block_tiles), block = first / block_tiles % blocks;
    const std::int64_t begin = first % block_tiles, end = min64(block_tiles, begin + range.end - first);
    for (int l = 0; l < 16; l += kLanes) {
      find_sources(s, block * 16 + l, sources);
      call.bias = bias ? bias + block * 16 + l : nullptr;
      call.scale = scale ? scale + block * 16 + l : nullptr;
      std::int64_t oh = begin / row.count, tile = begin % row.count;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t ih = oh * s.stride_h - s.pad_top, ow = tile * row.pixels + min64(tile, row.wide);
        const WorkRange rows = rows_inside(ih, s);
        const std::int64_t at = ((block * s.out_h + oh) * s.out_w + ow) * 16 + l;
        call.start = ow * s.stride_w - s.pad_left;
        call.x = x + n * args.x_batch + (ih + rows.begin * s.dilation_h) * in_row + call.start * 16;
        call.w = w + block * block_weights + rows.begin * row_weights + l;
        call.rows = rows.end - rows.begin;
        call.y = y + n * args.y_batch + at;
        call.residual = residual ? residual + n * args.residual_batch + at : nullptr;
        if (block + 1 < blocks && l == 0)
          prefetch_weights(w + (block + 1) * block_weights, block_weights, i - begin, end - begin);
        (tile < row.wide ? row.wide_tile : row.narrow_tile)(call);
        if (++tile == row.count) {
          tile = 0;
          ++oh;
        }
      }
    }
    first += end - begin;
  }
}

}  // namespace

extern const KernelEntry conv_lanes_kernels[] = {{"conv_lanes_f32", conv_lanes_f32, nullptr},
                                                 {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
