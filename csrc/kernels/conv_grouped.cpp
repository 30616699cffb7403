// regroup_f32, conv_expanded_f32: see conv_grouped.hpp. Maps have float alignment; y must not overlap x or w; the
// residual may be y.
#include "kernels/conv_grouped.hpp"

#include "kernels/activation.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// The sources of a block's lanes.
struct Sources {
  std::int64_t first;       // the lowest block
  bool is_pair;             // all lanes come from that block and the next
  std::int32_t index[16];   // lane of the pair, or -1
  std::int64_t offset[16];  // in floats, for blocks of `map` floats
};

// channel[l]: the source channel of lane l, or -1.
ENGINE_INLINE Sources find_sources(const std::int64_t (&channel)[16], std::int64_t map) {
  Sources found = {};
  std::int64_t low = INT64_MAX, high = 0;
  for (int l = 0; l < 16; ++l) {
    if (channel[l] < 0) continue;
    if (channel[l] / 16 < low) low = channel[l] / 16;
    if (channel[l] / 16 > high) high = channel[l] / 16;
  }
  found.first = low == INT64_MAX ? 0 : low;
  found.is_pair = high - found.first <= 1;
  for (int l = 0; l < 16; ++l) {
    const bool is_used = channel[l] >= 0;
    found.index[l] = is_used ? static_cast<std::int32_t>(channel[l] - found.first * 16) : -1;
    found.offset[l] = is_used ? channel[l] / 16 * map + channel[l] % 16 : -1;
  }
  return found;
}

// Gathers `count` pixels of 16 lanes; `from` points to the first pixel in block 0; blocks have `map` floats.
void gather(const Sources& sources, const float* from, std::int64_t map, std::int64_t count, float* to) {
#if defined(__AVX512F__)
  if (sources.is_pair) {
    const __m512i index = _mm512_loadu_si512(sources.index);
    const __mmask16 used = _mm512_cmpge_epi32_mask(index, _mm512_setzero_si512());
    const bool has_second = _mm512_cmpgt_epi32_mask(index, _mm512_set1_epi32(15)) != 0;
    const float* low = from + sources.first * map;
    const float* high = has_second ? low + map : low;
    for (std::int64_t p = 0; p < count; ++p)
      _mm512_storeu_ps(to + p * 16, _mm512_maskz_permutex2var_ps(used, _mm512_loadu_ps(low + p * 16), index,
                                                                 _mm512_loadu_ps(high + p * 16)));
    return;
  }
#endif
  for (int l = 0; l < 16; ++l) {
    const float* lane = from + sources.offset[l];
    if (sources.offset[l] < 0)
      for (std::int64_t p = 0; p < count; ++p) to[p * 16 + l] = 0.0f;
    else
      for (std::int64_t p = 0; p < count; ++p) to[p * 16 + l] = lane[p * 16];
  }
  (void)map;
}

struct Epilogue {
  const EpilogueArgs* args;
  const float *bias, *scale, *residual;  // at the block; residual at its first pixel
};

// Applies scale, bias, residual and activation to `count` pixels of 16 lanes, in place.
void finish(const Epilogue& epilogue, std::int64_t count, float* y) {
  const EpilogueArgs& args = *epilogue.args;
  const bool adds_first = epilogue.residual && !args.residual_after;
  const float* after = args.residual_after ? epilogue.residual : nullptr;
  for (int l = 0; l < 16; l += kLanes) {
    const Vec bias = epilogue.bias ? load(epilogue.bias + l) : zero();
    const Vec scale = epilogue.scale ? load(epilogue.scale + l) : broadcast(1.0f);
    for (std::int64_t p = 0; p < count; ++p) {
      Vec value = load(y + p * 16 + l);
      value = epilogue.scale ? fma(value, scale, bias) : value + bias;
      if (adds_first) value += load(epilogue.residual + p * 16 + l);
      store(y + p * 16 + l, value);
    }
    finish_column(args, static_cast<int>(count), y + l, 16, after ? after + l : nullptr, 16);
  }
}

// Pixels that are finished while they are still in the L1 cache.
constexpr std::int64_t kFinishPixels = 64;

// Split over (image, block of the result, pixel).
void regroup_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const RegroupArgs& args = *static_cast<const RegroupArgs*>(raw_args);
  const float* x = static_cast<const float*>(buffers[args.from_at]);
  float* y = static_cast<float*>(buffers[args.to_at]);
  const float *bias = nullptr, *scale = nullptr, *residual = nullptr;
  int operand = 2;
  if (args.operands.has_bias) bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) residual = static_cast<const float*>(buffers[operand++]);
  const std::int64_t map = args.pixels * 16, blocks = (args.groups * args.to_pitch + 15) / 16;
  const WorkRange range = split_work(args.batch * blocks * args.pixels, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t n = i / (blocks * args.pixels), block = i / args.pixels % blocks, first = i % args.pixels;
    const std::int64_t last = min64(args.pixels, first + range.end - i);
    std::int64_t channel[16];
    for (int l = 0; l < 16; ++l) {
      const std::int64_t at = block * 16 + l, group = at / args.to_pitch, in_group = at % args.to_pitch;
      const bool is_used = group < args.groups && in_group < args.channels;
      channel[l] = is_used ? group * args.from_pitch + in_group : -1;
    }
    const Sources sources = find_sources(channel, map);
    for (std::int64_t p = first; p < last; p += kFinishPixels) {
      const std::int64_t count = min64(kFinishPixels, last - p), at = block * map + p * 16;
      float* to = y + n * args.to_batch + at;
      if (!args.has_epilogue) {
        gather(sources, x + n * args.from_batch + p * 16, map, count, to);
        continue;
      }
      // The residual may be the output.
      alignas(64) float values[kFinishPixels * 16];
      gather(sources, x + n * args.from_batch + p * 16, map, count, values);
      finish({&args.epilogue, bias ? bias + block * 16 : nullptr, scale ? scale + block * 16 : nullptr,
              residual ? residual + n * args.residual_batch + at : nullptr},
             count, values);
      for (std::int64_t v = 0; v < count * 16; v += kLanes) store(to + v, load(values + v));
    }
    i += last - first;
  }
}

// Expands input rows [top, top + band_h) for one output block: [depth][band_h][band_w][16], zero outside the input.
void expand(const ExpandedConvArgs& args, const float* image, std::int64_t block, std::int64_t top, float* band) {
  const ConvShape& s = args.shape;
  const std::int64_t in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  const std::int64_t map = s.in_h * s.in_w * 16;
  const std::int64_t left = min64(s.pad_left, args.band_w), inside = min64(s.in_w, args.band_w - left);
  for (std::int64_t d = 0; d < in_group; ++d) {
    std::int64_t channel[16];
    for (int l = 0; l < 16; ++l) {
      const std::int64_t out = block * 16 + l;
      channel[l] = out < s.out_channels ? out / out_group * in_group + d : -1;
    }
    const Sources sources = find_sources(channel, map);
    for (std::int64_t r = 0; r < args.band_h; ++r, band += args.band_w * 16) {
      const std::int64_t ih = top + r;
      const bool is_inside = ih >= 0 && ih < s.in_h;
      const std::int64_t from = is_inside ? left * 16 : args.band_w * 16;
      for (std::int64_t i = 0; i < from; ++i) band[i] = 0.0f;
      if (!is_inside) continue;
      gather(sources, image + ih * s.in_w * 16, map, inside, band + from);
      for (std::int64_t i = from + inside * 16; i < args.band_w * 16; ++i) band[i] = 0.0f;
    }
  }
}

// kPixels adjacent pixels of an output row, whose first tap is `x`, before the epilogue.
template <int kPixels>
ENGINE_NOINLINE void multiply(const ExpandedConvArgs& args, const float* x, const float* w, float* y) {
  const ConvShape& s = args.shape;
  const std::int64_t pixel = s.stride_w * 16, depth_step = args.band_h * args.band_w * 16;
  for (int l = 0; l < 16; l += kLanes) {
    Vec sum[kPixels];
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) sum[p] = zero();
    const float* weight = w + l;
    for (std::int64_t d = 0; d < args.pack.blocks; ++d)
      for (std::int64_t r = 0; r < s.kernel_h; ++r) {
        const float* at = x + d * depth_step + r * s.dilation_h * args.band_w * 16 + l;
        for (std::int64_t c = 0; c < s.kernel_w; ++c, at += s.dilation_w * 16, weight += 16) {
          const Vec value = load(weight);
#pragma GCC unroll 8
          for (int p = 0; p < kPixels; ++p) sum[p] = fma(load(at + p * pixel), value, sum[p]);
        }
      }
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) store(y + p * 16 + l, sum[p]);
  }
}

// Split over (image, output block, output row).
void conv_expanded_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ExpandedConvArgs& args = *static_cast<const ExpandedConvArgs*>(raw_args);
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
  float* band = static_cast<float*>(context.scratch);
  const std::int64_t blocks = (s.out_channels + 15) / 16, block_weights = pack_reduction(args.pack) * 16;
  const WorkRange range = split_work(s.batch * blocks * s.out_h, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t n = i / (blocks * s.out_h), block = i / s.out_h % blocks, first = i % s.out_h;
    const std::int64_t last = min64(min64(first + args.band_rows, s.out_h), first + range.end - i);
    expand(args, x + n * args.x_batch, block, first * s.stride_h - s.pad_top, band);
    for (std::int64_t oh = first; oh < last; ++oh) {
      const float* row = band + (oh - first) * s.stride_h * args.band_w * 16;
      const std::int64_t at = (block * s.out_h + oh) * s.out_w * 16;
      for (std::int64_t ow = 0; ow < s.out_w; ow += kFinishPixels) {
        alignas(64) float values[kFinishPixels * 16];
        const std::int64_t count = min64(kFinishPixels, s.out_w - ow);
        std::int64_t p = 0;
        for (; p + 8 <= count; p += 8)
          multiply<8>(args, row + (ow + p) * s.stride_w * 16, w + block * block_weights, values + p * 16);
        for (; p < count; ++p)
          multiply<1>(args, row + (ow + p) * s.stride_w * 16, w + block * block_weights, values + p * 16);
        finish({&args.epilogue, bias ? bias + block * 16 : nullptr, scale ? scale + block * 16 : nullptr,
                residual ? residual + n * args.residual_batch + at + ow * 16 : nullptr},
               count, values);
        float* to = y + n * args.y_batch + at + ow * 16;
        for (std::int64_t v = 0; v < count * 16; v += kLanes) store(to + v, load(values + v));
      }
    }
    i += last - first;
  }
}

}  // namespace

extern const KernelEntry conv_grouped_kernels[] = {{"regroup_f32", regroup_f32, nullptr},
                                                   {"conv_expanded_f32", conv_expanded_f32, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
