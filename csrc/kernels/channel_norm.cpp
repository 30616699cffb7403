// channel_norm_blocked_f32, channel_norm_plain_f32: y = (x - mean) / deviation * scale + bias over the channels of each
// pixel, on NCHWc16 and on [batch, channels, pixels]; the deviation is sqrt(variance + epsilon) + deviation_epsilon.
//
// Operands as in channel_norm.hpp; float alignment; y may be x. Lanes beyond the channels of a blocked map are
// undefined in x and y. Split over (image, run of pixels). The variance is computed from differences from the mean.
#include "kernels/channel_norm.hpp"

#include "simd/partial.hpp"
#include "simd/root.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

struct Operands {
  const float *x, *scale, *bias;
  float* y;
};

ENGINE_INLINE Operands take(const ChannelNormArgs& args, void* const* buffers) {
  Operands o = {};
  o.x = static_cast<const float*>(*buffers++);
  if (args.has_scale) o.scale = static_cast<const float*>(*buffers++);
  if (args.has_bias) o.bias = static_cast<const float*>(*buffers++);
  o.y = static_cast<float*>(*buffers);
  return o;
}

ENGINE_INLINE Vec select(VecInt mask, Vec x) {
  return (Vec)((VecInt)x & mask);
}

// The sum of each pixel's lanes.
template <int kPixels>
ENGINE_INLINE void add_blocks(const Vec* parts, float* totals) {
  for (int p = 0; p < kPixels; ++p) {
    Vec total = parts[p * kVectorsPerBlock];
    for (int l = 1; l < kVectorsPerBlock; ++l) total += parts[p * kVectorsPerBlock + l];
    totals[p] = reduce_add(total);
  }
}

// `kPixels` adjacent pixels of a blocked map; x and y point to their first channel, blocks are `step` floats apart.
template <int kPixels>
void normalize_blocked(const ChannelNormArgs& args, const Operands& o, const float* x, float* y, std::int64_t step) {
  constexpr int kVectors = kPixels * kVectorsPerBlock;
  const std::int64_t whole = args.channels / kBlock, rest = args.channels % kBlock;
  const float* last = x + whole * step;
  VecInt valid[kVectorsPerBlock];
  for (int l = 0; l < kVectorsPerBlock; ++l) valid[l] = first_lanes(rest - l * kLanes);

  Vec sum[kVectors] = {};
  for (std::int64_t b = 0; b < whole; ++b)
    for (int v = 0; v < kVectors; ++v) sum[v] += load(x + b * step + v * kLanes);
  if (rest)
    for (int v = 0; v < kVectors; ++v) sum[v] += select(valid[v % kVectorsPerBlock], load(last + v * kLanes));
  // Computes roots and quotients of all pixels at once, since they cost more than the sums of a few blocks.
  constexpr int kSlots = (kPixels + kLanes - 1) / kLanes * kLanes;
  float mean[kSlots] = {}, factor[kSlots] = {};
  const float size = static_cast<float>(args.channels);
  add_blocks<kPixels>(sum, mean);
  for (int p = 0; p < kSlots; p += kLanes) store(mean + p, load(mean + p) / size);
  Vec squares[kVectors] = {};
  for (std::int64_t b = 0; b < whole; ++b)
    for (int v = 0; v < kVectors; ++v) {
      const Vec d = load(x + b * step + v * kLanes) - mean[v / kVectorsPerBlock];
      squares[v] = fma(d, d, squares[v]);
    }
  if (rest)
    for (int v = 0; v < kVectors; ++v) {
      const Vec d = select(valid[v % kVectorsPerBlock], load(last + v * kLanes) - mean[v / kVectorsPerBlock]);
      squares[v] = fma(d, d, squares[v]);
    }
  add_blocks<kPixels>(squares, factor);
  for (int p = 0; p < kSlots; p += kLanes)
    store(factor + p, 1.0f / (square_root(load(factor + p) / size + args.epsilon) + args.deviation_epsilon));
  for (std::int64_t b = 0; b * kBlock < args.channels; ++b)
    for (int l = 0; l < kVectorsPerBlock; ++l) {
      const std::int64_t channel = b * kBlock + l * kLanes, left = args.channels - channel;
      const std::int64_t count = left < 0 ? 0 : min64(left, kLanes);
      const Vec a = o.scale ? load_partial(o.scale + channel, count, zero()) : broadcast(1.0f);
      const Vec c = o.bias ? load_partial(o.bias + channel, count, zero()) : zero();
      for (int p = 0; p < kPixels; ++p) {
        const std::int64_t at = b * step + p * kBlock + l * kLanes;
        store(y + at, fma((load(x + at) - mean[p]) * factor[p], a, c));
      }
    }
}

void channel_norm_blocked_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  constexpr int kPixels = 8 / kVectorsPerBlock;
  const auto& args = *static_cast<const ChannelNormArgs*>(raw);
  const Operands o = take(args, buffers);
  const std::int64_t runs = (args.pixels + kChannelNormRun - 1) / kChannelNormRun, step = args.pixels * kBlock;
  const std::int64_t image = (args.channels + kBlock - 1) / kBlock * step;
  const WorkRange range = split_work(args.batch * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    std::int64_t p = i % runs * kChannelNormRun;
    const std::int64_t end = min64(p + kChannelNormRun, args.pixels), at = i / runs * image;
    for (; p + kPixels <= end; p += kPixels)
      normalize_blocked<kPixels>(args, o, o.x + at + p * kBlock, o.y + at + p * kBlock, step);
    for (; p < end; ++p) normalize_blocked<1>(args, o, o.x + at + p * kBlock, o.y + at + p * kBlock, step);
  }
}

// Vectors of adjacent pixels of a plain map; `count` lanes if kVectors is 1.
template <int kVectors>
void normalize_plain(const ChannelNormArgs& args, const Operands& o, const float* x, float* y, std::int64_t count) {
  const auto read = [count](const float* from, int v) {
    return kVectors == 1 ? load_partial(from, count, zero()) : load(from + v * kLanes);
  };
  const float size = static_cast<float>(args.channels);
  Vec mean[kVectors] = {}, factor[kVectors] = {};
  for (std::int64_t c = 0; c < args.channels; ++c)
    for (int v = 0; v < kVectors; ++v) mean[v] += read(x + c * args.pixels, v);
  for (int v = 0; v < kVectors; ++v) mean[v] /= size;
  for (std::int64_t c = 0; c < args.channels; ++c)
    for (int v = 0; v < kVectors; ++v) {
      const Vec d = read(x + c * args.pixels, v) - mean[v];
      factor[v] = fma(d, d, factor[v]);
    }
  for (int v = 0; v < kVectors; ++v)
    factor[v] = 1.0f / (square_root(factor[v] / size + args.epsilon) + args.deviation_epsilon);
  for (std::int64_t c = 0; c < args.channels; ++c) {
    const Vec a = broadcast(o.scale ? o.scale[c] : 1.0f), b = broadcast(o.bias ? o.bias[c] : 0.0f);
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = fma((read(x + c * args.pixels, v) - mean[v]) * factor[v], a, b);
      if constexpr (kVectors == 1)
        store_partial(y + c * args.pixels, value, count);
      else
        store(y + c * args.pixels + v * kLanes, value);
    }
  }
}

void channel_norm_plain_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  constexpr int kVectors = 4;
  const auto& args = *static_cast<const ChannelNormArgs*>(raw);
  const Operands o = take(args, buffers);
  const std::int64_t runs = (args.pixels + kChannelNormRun - 1) / kChannelNormRun;
  const WorkRange range = split_work(args.batch * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    std::int64_t p = i % runs * kChannelNormRun;
    const std::int64_t end = min64(p + kChannelNormRun, args.pixels), at = i / runs * args.channels * args.pixels;
    for (; p + kVectors * kLanes <= end; p += kVectors * kLanes)
      normalize_plain<kVectors>(args, o, o.x + at + p, o.y + at + p, kLanes);
    for (; p < end; p += kLanes) normalize_plain<1>(args, o, o.x + at + p, o.y + at + p, min64(kLanes, end - p));
  }
}

}  // namespace

extern const KernelEntry channel_norm_kernels[] = {{"channel_norm_blocked_f32", channel_norm_blocked_f32, nullptr},
                                                   {"channel_norm_plain_f32", channel_norm_plain_f32, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
