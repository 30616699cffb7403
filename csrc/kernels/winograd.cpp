// Winograd convolution; see winograd.hpp for operands and layouts. Buffers have element alignment; y must not overlap
// x, u or a temporary; the residual may be y.
#include "kernels/winograd.hpp"

#include "kernels/activation.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
ENGINE_INLINE std::int64_t blocks_of(std::int64_t channels) {
  return (channels + 15) / 16;
}

constexpr int kWeightLanes = 16;  // a cache line of results

// The one-dimensional transforms. Interpolation points: 0, 1, -1, infinity for m = 2, and also 2, -2 for m = 4.
template <int kTile>
struct Transform;

template <>
struct Transform<2> {
  static constexpr int kPoints = 4;
  static inline __attribute__((always_inline)) void input(const Vec (&d)[4], Vec (&t)[4]) {
    t[0] = d[0] - d[2];
    t[1] = d[1] + d[2];
    t[2] = d[2] - d[1];
    t[3] = d[1] - d[3];
  }
  static inline __attribute__((always_inline)) void output(const Vec (&m)[4], Vec (&s)[2]) {
    s[0] = m[0] + m[1] + m[2];
    s[1] = m[1] - m[2] - m[3];
  }
  static inline __attribute__((always_inline)) void weights(const double (&g)[3][kWeightLanes],
                                                            double (&u)[4][kWeightLanes]) {
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      u[0][lane] = g[0][lane];
      u[1][lane] = (g[0][lane] + g[1][lane] + g[2][lane]) / 2;
      u[2][lane] = (g[0][lane] - g[1][lane] + g[2][lane]) / 2;
      u[3][lane] = g[2][lane];
    }
  }
};

template <>
struct Transform<4> {
  static constexpr int kPoints = 6;
  static inline __attribute__((always_inline)) void input(const Vec (&d)[6], Vec (&t)[6]) {
    const Vec four = broadcast(4.0f), five = broadcast(5.0f), two = broadcast(2.0f);
    const Vec even = d[4] - four * d[2], odd = d[3] - four * d[1];
    const Vec even2 = d[4] - d[2], odd2 = two * (d[3] - d[1]);
    t[0] = fma(four, d[0], d[4] - five * d[2]);
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = even2 + odd2;
    t[4] = even2 - odd2;
    t[5] = fma(four, d[1], d[5] - five * d[3]);
  }
  static inline __attribute__((always_inline)) void output(const Vec (&m)[6], Vec (&s)[4]) {
    const Vec sum1 = m[1] + m[2], difference1 = m[1] - m[2];
    const Vec sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    s[0] = m[0] + sum1 + sum2;
    s[1] = fma(broadcast(2.0f), difference2, difference1);
    s[2] = fma(broadcast(4.0f), sum2, sum1);
    s[3] = fma(broadcast(8.0f), difference2, difference1) + m[5];
  }
  static inline __attribute__((always_inline)) void weights(const double (&g)[3][kWeightLanes],
                                                            double (&u)[6][kWeightLanes]) {
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      u[0][lane] = g[0][lane] / 4;
      u[1][lane] = -(g[0][lane] + g[1][lane] + g[2][lane]) / 6;
      u[2][lane] = -(g[0][lane] - g[1][lane] + g[2][lane]) / 6;
      u[3][lane] = (g[0][lane] + 2 * g[1][lane] + 4 * g[2][lane]) / 24;
      u[4][lane] = (g[0][lane] - 2 * g[1][lane] + 4 * g[2][lane]) / 24;
      u[5][lane] = g[2][lane];
    }
  }
};

struct TilePosition {
  std::int64_t image, h, w;  // of the first output pixel
};
ENGINE_INLINE TilePosition position(const WinogradArgs& args, std::int64_t tile) {
  const std::int64_t per_image = args.tiles_h * args.tiles_w, in_image = tile % per_image;
  return {tile / per_image, in_image / args.tiles_w * args.output_tile, in_image % args.tiles_w * args.output_tile};
}

// Transforms tiles [begin, end) of channel block `block`; tile `begin` is stored in slot `at` of V.
template <int kTile, class Map>
ENGINE_NOINLINE void transform_input(const WinogradArgs& args, const Map* x, std::int64_t block, std::int64_t begin,
                                     std::int64_t end, float* v, std::int64_t stride) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  const ConvShape& s = args.shape;
  for (std::int64_t tile = begin; tile < end; ++tile, v += 16) {
    const TilePosition at = position(args, tile);
    const std::int64_t h = at.h - s.pad_top, w = at.w - s.pad_left;
    const Map* map = x + at.image * args.x_batch + block * s.in_h * s.in_w * 16;
    const Map* from = map + (h * s.in_w + w) * 16;
    std::int64_t row = s.in_w * 16;
    alignas(64) Map padded[kSide * kSide * 16];
    if (h < 0 || w < 0 || h + kSide > s.in_h || w + kSide > s.in_w) {
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) {
          const bool is_inside = h + i >= 0 && h + i < s.in_h && w + j >= 0 && w + j < s.in_w;
          for (int l = 0; l < 16; l += kLanes)
            store(padded + (i * kSide + j) * 16 + l,
                  is_inside ? load(map + ((h + i) * s.in_w + w + j) * 16 + l) : zero());
        }
      from = padded;
      row = kSide * 16;
    }
    for (int l = 0; l < 16; l += kLanes) {
      Vec half[kSide][kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) {
        Vec column[kSide], out[kSide];
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) column[i] = load(from + i * row + j * 16 + l);
        T::input(column, out);
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) half[i][j] = out[i];
      }
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) {
        Vec out[kSide];
        T::input(half[i], out);
#pragma GCC unroll 6
        for (int j = 0; j < kSide; ++j) store(v + (i * kSide + j) * stride + l, out[j]);
      }
    }
  }
}

template <class Map>
struct OutputOperands {
  const float *bias, *scale;
  const Map* residual;
  Map* y;
};

// Inverse-transforms tiles [begin, end) of channels [channel, channel + 16) and stores them after the epilogue.
template <int kTile, class Map>
ENGINE_NOINLINE void transform_output(const WinogradArgs& args, const float* m, std::int64_t stride,
                                      std::int64_t channel, std::int64_t begin, std::int64_t end,
                                      const OutputOperands<Map>& operands) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  const ConvShape& s = args.shape;
  const EpilogueArgs& epilogue = args.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  const Vec low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  const Vec high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  const bool finish = !is_clip || (operands.residual && epilogue.residual_after);
  for (std::int64_t tile = begin; tile < end; ++tile, m += 16) {
    const TilePosition at = position(args, tile);
    const std::int64_t first = (channel / 16 * s.out_h + at.h) * s.out_w * 16 + at.w * 16;
    const int rows = static_cast<int>(min64(kTile, s.out_h - at.h));
    const int cols = static_cast<int>(min64(kTile, s.out_w - at.w));
    for (int l = 0; l < 16; l += kLanes) {
      const Vec bias = operands.bias ? load(operands.bias + channel + l) : zero();
      const Vec scale = operands.scale ? load(operands.scale + channel + l) : zero();
      Map* y = operands.y + at.image * args.y_batch + first + l;
      const Map* residual =
          operands.residual ? operands.residual + at.image * args.residual_batch + first + l : nullptr;
      Vec half[kTile][kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) {
        Vec column[kSide], out[kTile];
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) column[i] = load(m + (i * kSide + j) * stride + l);
        T::output(column, out);
#pragma GCC unroll 4
        for (int i = 0; i < kTile; ++i) half[i][j] = out[i];
      }
#pragma GCC unroll 4
      for (int i = 0; i < kTile; ++i) {
        if (i >= rows) break;
        Vec out[kTile];
        T::output(half[i], out);
        const std::int64_t row = i * s.out_w * 16;
        // The steps after the clip are computed in f32: in place, or in a temporary so that a bf16 map is rounded once.
        constexpr bool kIsAside = sizeof(Map) != sizeof(float);
        [[maybe_unused]] float aside[kTile * kLanes];
#pragma GCC unroll 4
        for (int j = 0; j < kTile; ++j) {
          if (j >= cols) break;
          Vec value = operands.scale ? fma(out[j], scale, bias) : out[j] + bias;
          if (residual && !epilogue.residual_after) value += load(residual + row + j * 16);
          value = min(high, max(low, value));
          if (kIsAside && finish)
            store(aside + j * kLanes, value);
          else
            store(y + row + j * 16, value);
        }
        if (!finish) continue;
        const Map* added = residual && epilogue.residual_after ? residual + row : nullptr;
        if constexpr (kIsAside) {
          finish_column(epilogue, cols, aside, kLanes, nullptr, 0);
          for (int j = 0; j < cols; ++j) {
            Vec value = load(aside + j * kLanes);
            if (added) value += load(added + j * 16);
            store(y + row + j * 16, value);
          }
        } else {
          finish_column(epilogue, cols, y + row, 16, added, 16);
        }
      }
    }
  }
}

// The product for one point: `tiles` pixels of V, of `channels`, times the weights of one channel tile. Meanwhile
// prefetches `next`, the weights of the next point; null if there are none.
ENGINE_NOINLINE void multiply(const WinogradArgs& args, const float* v, std::int64_t v_block, const float* u,
                              std::int64_t channels, std::int64_t width, std::int64_t tiles, float* m,
                              std::int64_t m_block, const float* next) {
  static const EpilogueArgs kPlain{};
  const std::int64_t count = (tiles + args.pixels - 1) / args.pixels;
  const int pixels = static_cast<int>(tiles / count);
  const std::int64_t wide = tiles % count;
  const int vectors = static_cast<int>(width / kLanes);
  TileCall call = {};
  call.x_block = v_block;
  call.w = u;
  call.w_block = 16 * width;
  call.blocks = static_cast<std::int32_t>(blocks_of(channels));
  call.rows = call.cols = 1;
  call.depth = 16;
  call.last_depth = static_cast<std::int32_t>(channels - 16 * (call.blocks - 1));
  call.y_block = m_block;
  call.y_pixel = 16;
  call.epilogue = &kPlain;
  const TileFn wider = wide > 0 ? tile_kernel(vectors, pixels + 1, PixelStep::kBlocked1) : nullptr;
  const TileFn plain = tile_kernel(vectors, pixels, PixelStep::kBlocked1);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (next) prefetch_part(call, next, width, channels, i, count);
    call.x = v + at * 16;
    call.y = m + at * 16;
    (i < wide ? wider : plain)(call);
    at += pixels + (i < wide);
  }
}

template <class Map>
ENGINE_INLINE OutputOperands<Map> output_operands(const WinogradArgs& args, void* const* buffers, int operand) {
  OutputOperands<Map> found = {};
  if (args.operands.has_bias) found.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) found.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) found.residual = static_cast<const Map*>(buffers[operand++]);
  found.y = static_cast<Map*>(buffers[operand]);
  return found;
}

// The index of V among the operands; M follows.
ENGINE_INLINE int temporaries_at(const WinogradArgs& args) {
  return 3 + args.operands.has_bias + args.operands.has_scale + args.operands.has_residual;
}

// Channels that are computed apart, and their weights.
struct Group {
  std::int64_t in_first, ins, out_first, outs;
  std::int64_t tile_channels, tiles;  // of outputs
  std::int64_t weights;               // floats before them

  std::int64_t width(std::int64_t tile) const {
    const std::int64_t rest = outs - tile * tile_channels;
    return min64(tile_channels, (rest + kLanes - 1) / kLanes * kLanes);
  }
};
ENGINE_INLINE Group group_at(const WinogradArgs& args, std::int64_t index) {
  Group group = {};
  group.in_first = index * args.in_group;
  group.ins = min64(args.in_group, args.shape.in_channels - group.in_first);
  group.out_first = index * args.out_group;
  group.outs = min64(args.out_group, args.shape.out_channels - group.out_first);
  group.tile_channels = args.tile_channels;
  group.tiles = (group.outs + args.tile_channels - 1) / args.tile_channels;
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  group.weights = index * points * args.in_group * args.out_group;
  return group;
}

// A channel tile of any group.
struct ChannelTile {
  Group group;
  std::int64_t tile;  // in the group
};
ENGINE_INLINE std::int64_t tiles_of_all(const WinogradArgs& args) {
  return (args.groups - 1) * group_at(args, 0).tiles + group_at(args, args.groups - 1).tiles;
}
ENGINE_INLINE ChannelTile channel_tile_at(const WinogradArgs& args, std::int64_t index) {
  const std::int64_t in_group = group_at(args, 0).tiles, group = min64(index / in_group, args.groups - 1);
  return {group_at(args, group), index - group * in_group};
}

// One worker's share of a fused step: a range of the tiles of all groups, and of the channel tiles of each group.
struct FusedShare {
  WorkRange tiles, channels;
};
FusedShare fused_share(const WinogradArgs& args, const KernelContext& context) {
  const std::int64_t all = args.groups * args.tiles;
  if (!args.by_channels) return {split_work(all, context.worker, context.workers), {0, INT64_MAX}};
  // Channel tiles that share a block stay together.
  std::int64_t together = 1;
  while (together * args.tile_channels % 16 != 0) ++together;
  const std::int64_t parts = (group_at(args, 0).tiles + together - 1) / together;
  int split = static_cast<int>(min64(context.workers, parts));
  while (split > 1 && context.workers % split != 0) --split;
  if (split < 1) split = 1;
  const WorkRange own = split_work(parts, context.worker % split, split);
  return {split_work(all, context.worker / split, context.workers / split), {own.begin * together, own.end * together}};
}

// Computes tiles [range.begin, range.end) of channel tiles [channels.begin, channels.end) of a group.
template <int kTile, class Map>
void fuse_group(const WinogradArgs& args, const Group& group, const Map* x, const float* u,
                const OutputOperands<Map>& operands, const WorkRange& range, const WorkRange& channels, float* v) {
  constexpr int kPoints = Transform<kTile>::kPoints * Transform<kTile>::kPoints;
  const std::int64_t ins = group.ins, in_blocks = blocks_of(ins);
  const std::int64_t parts = (range.end - range.begin + args.block_tiles - 1) / args.block_tiles;
  const std::int64_t v_stride = winograd_point_stride(in_blocks, args.block_tiles);
  const std::int64_t m_stride = winograd_point_stride(blocks_of(args.tile_channels), args.block_tiles);
  float* m = v + kPoints * v_stride;
  const float* group_weights = u + group.weights;
  const float* first_weights = group_weights + channels.begin * args.tile_channels * ins * kPoints;
  for (std::int64_t part = 0; part < parts; ++part) {
    const WorkRange share = split_work(range.end - range.begin, static_cast<int>(part), static_cast<int>(parts));
    const std::int64_t begin = range.begin + share.begin, end = range.begin + share.end, tiles = end - begin;
    for (std::int64_t b = 0; b < in_blocks; ++b)
      transform_input<kTile>(args, x, group.in_first / 16 + b, begin, end, v + b * tiles * 16, v_stride);
    // A vector narrower than a block (lanes 4, one vector) fills a block in several channel tiles.
    for (std::int64_t t = channels.begin; t < channels.end; ++t) {
      const std::int64_t width = group.width(t), channel = t * args.tile_channels;
      const float* weights = group_weights + channel * ins * kPoints;
      const bool is_last = t == channels.end - 1;
      const float* after_last = part + 1 < parts ? first_weights : nullptr;
      for (int p = 0; p < kPoints; ++p)
        multiply(args, v + p * v_stride, tiles * 16, weights + p * ins * width, ins, width, tiles,
                 m + p * m_stride + channel % 16, tiles * 16,
                 is_last && p == kPoints - 1 ? after_last : weights + (p + 1) * ins * width);
      const bool is_block_done = (channel + width) % 16 == 0 || t == group.tiles - 1;
      if (!is_block_done) continue;
      for (std::int64_t c = channel / 16 * 16; c < channel + width; c += 16)
        transform_output<kTile>(args, m + (c - channel / 16 * 16) * tiles, m_stride, group.out_first + c, begin, end,
                                operands);
    }
  }
}

template <int kTile, class Map>
void fused(const WinogradArgs& args, void* const* buffers, const KernelContext& context) {
  const Map* x = static_cast<const Map*>(buffers[0]);
  const float* u = static_cast<const float*>(buffers[1]);
  const OutputOperands<Map> operands = output_operands<Map>(args, buffers, 2);
  const FusedShare own = fused_share(args, context);
  for (std::int64_t at = own.tiles.begin; at < own.tiles.end;) {
    const Group group = group_at(args, at / args.tiles);
    const std::int64_t begin = at % args.tiles, end = min64(args.tiles, begin + own.tiles.end - at);
    fuse_group<kTile>(args, group, x, u, operands, {begin, end},
                      {own.channels.begin, min64(own.channels.end, group.tiles)}, static_cast<float*>(context.scratch));
    at += end - begin;
  }
}

template <class Map>
void winograd_fused(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  return args.output_tile == 2 ? fused<2, Map>(args, buffers, context) : fused<4, Map>(args, buffers, context);
}

// Split over (channel block, tile).
template <class Map>
void winograd_input(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const Map* x = static_cast<const Map*>(buffers[0]);
  float* v = static_cast<float*>(buffers[temporaries_at(args)]);
  const std::int64_t blocks = blocks_of(args.shape.in_channels);
  const std::int64_t stride = winograd_point_stride(blocks, args.tiles);
  const WorkRange range = split_work(blocks * args.tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t block = i / args.tiles, begin = i % args.tiles;
    const std::int64_t end = min64(args.tiles, begin + range.end - i);
    float* to = v + (block * args.tiles + begin) * 16;
    if (args.output_tile == 2)
      transform_input<2>(args, x, block, begin, end, to, stride);
    else
      transform_input<4>(args, x, block, begin, end, to, stride);
    i += end - begin;
  }
}

// Split over (channel tile, point), so that each weight is read by one worker.
void winograd_gemm_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  if (args.tiles == 0) return;
  const float* v = static_cast<const float*>(buffers[temporaries_at(args)]);
  const float* u = static_cast<const float*>(buffers[1]);
  float* m = static_cast<float*>(buffers[temporaries_at(args) + 1]);
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  const std::int64_t v_stride = winograd_point_stride(blocks_of(args.shape.in_channels), args.tiles);
  const std::int64_t m_stride = winograd_point_stride(blocks_of(args.shape.out_channels), args.tiles);
  const WorkRange range = split_work(tiles_of_all(args) * points, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto [group, t] = channel_tile_at(args, i / points);
    const std::int64_t p = i % points, ins = group.ins, width = group.width(t), channel = t * args.tile_channels;
    const float* weights = u + group.weights + channel * ins * points + p * ins * width;
    const std::int64_t out = group.out_first + channel;
    multiply(args, v + p * v_stride + group.in_first * args.tiles, args.tiles * 16, weights, ins, width, args.tiles,
             m + p * m_stride + out / 16 * args.tiles * 16 + out % 16, args.tiles * 16,
             i + 1 < range.end ? weights + ins * width : nullptr);
  }
}

// Split over (channel block, tile).
template <class Map>
void winograd_output(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const float* m = static_cast<const float*>(buffers[temporaries_at(args) + 1]);
  const OutputOperands<Map> operands = output_operands<Map>(args, buffers, 2);
  const std::int64_t blocks = blocks_of(args.shape.out_channels);
  const std::int64_t stride = winograd_point_stride(blocks, args.tiles);
  const WorkRange range = split_work(blocks * args.tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t block = i / args.tiles, begin = i % args.tiles;
    const std::int64_t end = min64(args.tiles, begin + range.end - i);
    const float* from = m + (block * args.tiles + begin) * 16;
    if (args.output_tile == 2)
      transform_output<2>(args, from, stride, block * 16, begin, end, operands);
    else
      transform_output<4>(args, from, stride, block * 16, begin, end, operands);
    i += end - begin;
  }
}

// Split over (channel tile, input channel). Computed in doubles, for several output channels at a time.
template <int kTile>
void transform_weights(const WinogradArgs& args, const float* w, float* u, const KernelContext& context) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  const ConvShape& s = args.shape;
  // Weights between channels of different groups of the shape are zero, and not stored.
  const std::int64_t stored = s.in_channels / s.groups, outs_of_stored = s.out_channels / s.groups;
  const WorkRange range = split_work(tiles_of_all(args) * args.in_group, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const auto [group, t] = channel_tile_at(args, item / args.in_group);
    const std::int64_t c = item % args.in_group, in = group.in_first + c;
    if (c >= group.ins) continue;
    const std::int64_t width = group.width(t), channel = t * args.tile_channels;
    float* to = u + group.weights + channel * group.ins * kSide * kSide + c * width;
    for (std::int64_t k = 0; k < width; k += kWeightLanes) {
      const std::int64_t wanted = min64(kWeightLanes, width - k);
      const std::int64_t present = min64(wanted, group.outs - channel - k);
      double taps[3][3][kWeightLanes] = {}, half[3][kSide][kWeightLanes], column[3][kWeightLanes];
      double all[kSide][kWeightLanes];
      for (std::int64_t lane = 0; lane < present; ++lane) {
        const std::int64_t out = group.out_first + channel + k + lane;
        if (in / stored != out / outs_of_stored) continue;
        const float* from = w + (out * stored + in % stored) * 9;
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j) taps[i][j][lane] = from[3 * i + j];
      }
      for (int i = 0; i < 3; ++i) T::weights(taps[i], half[i]);
      for (int j = 0; j < kSide; ++j) {
        for (int i = 0; i < 3; ++i)
          for (int lane = 0; lane < kWeightLanes; ++lane) column[i][lane] = half[i][j][lane];
        T::weights(column, all);
        for (int i = 0; i < kSide; ++i) {
          float* point = to + (i * kSide + j) * group.ins * width + k;
          for (std::int64_t lane = 0; lane < wanted; ++lane) point[lane] = static_cast<float>(all[i][lane]);
        }
      }
    }
  }
}

void winograd_weights_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const float* w = static_cast<const float*>(buffers[0]);
  float* u = static_cast<float*>(buffers[1]);
  if (args.output_tile == 2)
    transform_weights<2>(args, w, u, context);
  else
    transform_weights<4>(args, w, u, context);
}

}  // namespace

extern const KernelEntry winograd_kernels[] = {{"winograd_fused_f32", winograd_fused<float>, &tile_traits},
                                               {"winograd_fused_bf16", winograd_fused<Bf16>, &tile_traits},
                                               {"winograd_input_f32", winograd_input<float>, &tile_traits},
                                               {"winograd_input_bf16", winograd_input<Bf16>, &tile_traits},
                                               {"winograd_gemm_f32", winograd_gemm_f32, &tile_traits},
                                               {"winograd_output_f32", winograd_output<float>, &tile_traits},
                                               {"winograd_output_bf16", winograd_output<Bf16>, &tile_traits},
                                               {"winograd_weights_f32", winograd_weights_f32, &tile_traits},
                                               {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
