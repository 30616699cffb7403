// conv_pointwise_groups_f32: see pointwise_groups.hpp. Maps have float alignment; y must not overlap x or w; the
// residual may be y.
//
// The sums of some pixels go to scratch memory, [pixel][channel]: there, a vector of a group's outputs starts at any
// channel. What it stores beyond the group's last channel is overwritten by the next group. The epilogue then reads
// whole blocks.
#include "kernels/pointwise_groups.hpp"

#include "kernels/activation.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// A strip is computed in parts of as many pixels as registers have sums for.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPartPixels = 14;
#elif defined(__AVX__)
constexpr int kPartPixels = 5;
#else
constexpr int kPartPixels = 4;
#endif

struct GroupCall {
  const float* x;     // the first pixel, block 0
  std::int64_t map;   // floats between blocks
  std::int64_t from;  // the first channel of the group
  std::int64_t depth;
  const float* w;
  std::int64_t w_step;  // between channels of x
  float* sums;
  std::int64_t row;  // floats between pixels of the sums
};

template <int kVectors, int kPixels>
ENGINE_NOINLINE void multiply(const GroupCall& call) {
  Vec sum[kVectors][kPixels] = {};
  const float* w = call.w;
  for (std::int64_t channel = call.from, end = call.from + call.depth; channel < end;) {
    const float* at = call.x + channel / 16 * call.map + channel % 16;
    const std::int64_t count = min64(16 - channel % 16, end - channel);
    for (std::int64_t d = 0; d < count; ++d, ++at, w += call.w_step) {
      Vec weight[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) weight[v] = load(w + v * kLanes);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) {
        const Vec value = broadcast(at[p * 16]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[v][p] = fma(value, weight[v], sum[v][p]);
      }
    }
    channel += count;
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) store(call.sums + p * call.row + v * kLanes, sum[v][p]);
  }
}

// `width` output channels, 16 or 32, of all pixels of a strip.
void multiply_width(GroupCall call, int width) {
  const float *x = call.x, *w = call.w;
  float* sums = call.sums;
  for (int l = 0; l < width; l += 2 * kLanes) {
    const bool has_two = l + kLanes < width;
    call.w = w + l;
    int p = 0;
    for (; p + kPartPixels <= kPointwisePixels; p += kPartPixels) {
      call.x = x + p * 16;
      call.sums = sums + p * call.row + l;
      (has_two ? multiply<2, kPartPixels> : multiply<1, kPartPixels>)(call);
    }
    constexpr int kRest = kPointwisePixels % kPartPixels;
    if constexpr (kRest > 0) {
      call.x = x + p * 16;
      call.sums = sums + p * call.row + l;
      (has_two ? multiply<2, kRest> : multiply<1, kRest>)(call);
    }
  }
}

struct Block {
  const float *bias, *scale, *residual;  // residual at the first pixel
  float* y;
};

// Stores the sums of `count` pixels of a block after the epilogue.
void finish_block(const EpilogueArgs& epilogue, const Block& block, const float* sums, std::int64_t row,
                  std::int64_t count) {
  const bool is_clip = epilogue.activation == Activation::kClip;
  const float* after = epilogue.residual_after ? block.residual : nullptr;
  const float* before = after ? nullptr : block.residual;
  const Vec low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  const Vec high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  for (int l = 0; l < 16; l += kLanes) {
    const Vec bias = block.bias ? load(block.bias + l) : zero();
    const Vec scale = block.scale ? load(block.scale + l) : zero();
    for (std::int64_t p = 0; p < count; ++p) {
      Vec value = load(sums + p * row + l);
      value = block.scale ? fma(value, scale, bias) : value + bias;
      if (before) value += load(before + p * 16 + l);
      store(block.y + p * 16 + l, min(high, max(low, value)));
    }
    if (!is_clip || after)
      finish_column(epilogue, static_cast<int>(count), block.y + l, 16, after ? after + l : nullptr, 16);
  }
}

// Split over (image, strip of pixels). The last strip of an image shares pixels with the one before.
void conv_pointwise_groups_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PointwiseGroupsArgs& args = *static_cast<const PointwiseGroupsArgs*>(raw_args);
  const ConvShape& s = args.shape;
  const PackArgs& pack = args.pack;
  const float* x = static_cast<const float*>(buffers[0]);
  const float* w = static_cast<const float*>(buffers[1]);
  const float *bias = nullptr, *scale = nullptr, *residual = nullptr;
  int operand = 2;
  if (args.operands.has_bias) bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) residual = static_cast<const float*>(buffers[operand++]);
  float* y = static_cast<float*>(buffers[operand]);
  float* sums = static_cast<float*>(context.scratch);

  const std::int64_t pixels = s.out_h * s.out_w, strips = (pixels + kPointwisePixels - 1) / kPointwisePixels;
  const std::int64_t blocks = (s.out_channels + 15) / 16, tiles = pack_tiles(pack);
  const std::int64_t group_weights = pack_group_words(pack);
  GroupCall call = {};
  call.map = pixels * 16;
  call.depth = pack.last_depth;
  call.row = pointwise_row(s);
  const WorkRange range = split_work(s.batch * strips, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / strips, first = i % strips * kPointwisePixels;
    const std::int64_t start = min64(first, pixels - kPointwisePixels);
    const std::int64_t count = min64(kPointwisePixels, pixels - first);
    call.x = x + n * args.x_batch + start * 16;
    for (std::int64_t g = 0; g < s.groups; ++g)
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const int width = tile == tiles - 1 ? pack.tail_channels : pack.tile_channels;
        const std::int64_t channel = tile * pack.tile_channels;
        call.from = g * call.depth;
        call.w = w + g * group_weights + channel * call.depth;
        call.w_step = width;
        call.sums = sums + g * pack.channels + channel;
        multiply_width(call, width);
      }
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t at = (block * pixels + first) * 16;
      finish_block(args.epilogue,
                   {bias ? bias + block * 16 : nullptr, scale ? scale + block * 16 : nullptr,
                    residual ? residual + n * args.residual_batch + at : nullptr, y + n * args.y_batch + at},
                   sums + (first - start) * call.row + block * 16, call.row, count);
    }
  }
}

}  // namespace

extern const KernelEntry pointwise_groups_kernels[] = {
    {"conv_pointwise_groups_f32", conv_pointwise_groups_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
