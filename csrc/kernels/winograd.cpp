// Winograd convolution; see winograd.hpp for operands and layouts. Buffers have element alignment; y must not overlap
// x, u or a temporary; the residual may be y.
#include "kernels/winograd.hpp"

#include "kernels/activation.hpp"
#include "kernels/winograd_tiles.hpp"
#include "kernels/winograd_weights.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Transforms `count` tiles of channel block `block`.
template <int kTile, class Map>
ENGINE_NOINLINE void transform_input(const WinogradArgs& args, const Map* x, std::int64_t block,
                                     const WinogradTile* tiles, std::int64_t count, float* v, std::int64_t stride) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  for (std::int64_t t = 0; t < count; ++t, v += 16) {
    alignas(64) Map padded[kSide * kSide * 16];
    const auto [from, row] = tile_input<kSide>(args, x, block, {tiles[t].image, tiles[t].h, tiles[t].w}, padded);
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

// The places of the sums of a row of a tile, in some lanes of a block of channels.
template <class Map>
struct RowTarget {
  Vec bias, scale, low, high;
  bool has_scale, finish;
  int cols;
  std::int64_t pixel;  // between outputs
};

// Stores the sums of a row after the epilogue.
template <int kTile, class Map>
ENGINE_INLINE void finish_row(const EpilogueArgs& epilogue, const Vec (&sums)[kTile], const RowTarget<Map>& target,
                              const Map* residual, Map* y) {
  // The steps after the clip are computed in f32: in place, or in a temporary so that a bf16 map is rounded once.
  constexpr bool kIsAside = sizeof(Map) != sizeof(float);
  [[maybe_unused]] float aside[kTile * kLanes];
  const int cols = target.cols;
#pragma GCC unroll 4
  for (int j = 0; j < kTile; ++j) {
    if (j >= cols) break;
    Vec value = target.has_scale ? fma(sums[j], target.scale, target.bias) : sums[j] + target.bias;
    if (residual && !epilogue.residual_after) value += load(residual + j * target.pixel);
    value = min(target.high, max(target.low, value));
    if (kIsAside && target.finish)
      store(aside + j * kLanes, value);
    else
      store(y + j * target.pixel, value);
  }
  if (!target.finish) return;
  const Map* added = residual && epilogue.residual_after ? residual : nullptr;
  if constexpr (kIsAside) {
    finish_column(epilogue, cols, aside, kLanes, nullptr, 0);
    for (int j = 0; j < cols; ++j) {
      Vec value = load(aside + j * kLanes);
      if (added) value += load(added + j * target.pixel);
      store(y + j * target.pixel, value);
    }
  } else {
    finish_column(epilogue, cols, y, target.pixel, added, target.pixel);
  }
}

template <class Map>
ENGINE_INLINE RowTarget<Map> row_target(const WinogradArgs& args, const OutputOperands<Map>& operands,
                                        std::int64_t channel) {
  const EpilogueArgs& epilogue = args.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  RowTarget<Map> target = {};
  target.low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  target.high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  target.finish = !is_clip || (operands.residual && epilogue.residual_after);
  target.has_scale = operands.scale != nullptr;
  target.pixel = args.shape.dilation_w * 16;
  target.bias = operands.bias ? load(operands.bias + channel) : zero();
  target.scale = operands.scale ? load(operands.scale + channel) : zero();
  return target;
}

// Stores some sums of a row; some of them are zero.
template <int kTile, class Map>
ENGINE_INLINE void finish_marked_row(const EpilogueArgs& epilogue, const Vec (&sums)[kTile], std::uint32_t zeros,
                                     std::uint32_t stored, RowTarget<Map> target, const Map* residual, Map* y) {
  for (int first = 0; first < kTile; first += target.cols + 1) {
    target.cols = 0;
    Vec run[kTile] = {};
    for (int j = first; j < kTile && (stored >> j & 1); ++j) run[target.cols++] = zeros >> j & 1 ? zero() : sums[j];
    if (target.cols == 0) continue;
    const std::int64_t at = first * target.pixel;
    finish_row(epilogue, run, target, residual ? residual + at : nullptr, y + at);
  }
}

// Inverse-transforms a tile in some lanes, and stores it after the epilogue: `rows` rows, `row` apart.
template <int kTile, bool kIsMarked, class Map>
ENGINE_INLINE void transform_tile(const EpilogueArgs& epilogue, const float* m, std::int64_t stride, int rows,
                                  const RowTarget<Map>& target, std::int64_t row, const WinogradMarks& marks,
                                  const Map* residual, Map* y) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  Vec half[kTile][kSide];
#pragma GCC unroll 6
  for (int j = 0; j < kSide; ++j) {
    Vec column[kSide], transformed[kTile];
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) column[i] = load(m + (i * kSide + j) * stride);
    T::output(column, transformed);
#pragma GCC unroll 4
    for (int i = 0; i < kTile; ++i) half[i][j] = transformed[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTile; ++i) {
    if (i >= rows) break;
    Vec finished[kTile];
    T::output(half[i], finished);
    const Map* added = residual ? residual + i * row : nullptr;
    if (kIsMarked)
      finish_marked_row(epilogue, finished, marks.zero >> (i * kTile), (marks.zero | marks.transformed) >> (i * kTile),
                        target, added, y + i * row);
    else
      finish_row(epilogue, finished, target, added, y + i * row);
  }
}
template <int kTile, class Map>
ENGINE_NOINLINE void transform_marked_tile(const EpilogueArgs& epilogue, const float* m, std::int64_t stride, int rows,
                                           const RowTarget<Map>& target, std::int64_t row, const WinogradMarks& marks,
                                           const Map* residual, Map* y) {
  transform_tile<kTile, true>(epilogue, m, stride, rows, target, row, marks, residual, y);
}

// Inverse-transforms `count` tiles of channels [channel, channel + 16) of a group.
template <int kTile, class Map>
ENGINE_NOINLINE void transform_output(const WinogradArgs& args, const float* m, std::int64_t stride, const Group& group,
                                      std::int64_t channel, const WinogradTile* tiles, std::int64_t count,
                                      const OutputOperands<Map>& operands) {
  const ConvShape& s = args.shape;
  const std::int64_t out = group.out_first + channel, row = s.dilation_h * s.out_w * 16;
  for (int l = 0; l < 16; l += kLanes, m += kLanes) {
    RowTarget<Map> target = row_target(args, operands, out + l);
    for (std::int64_t t = 0; t < count; ++t) {
      const WinogradTile& at = tiles[t];
      const std::int64_t first = (out / 16 * s.out_h + at.h) * s.out_w * 16 + at.w * 16 + l;
      const int rows = static_cast<int>(output_rows(args, at.h));
      target.cols = static_cast<int>(output_cols(args, at.w));
      Map* y = operands.y + at.image * args.y_batch + first;
      const Map* residual = operands.residual ? operands.residual + at.image * args.residual_batch + first : nullptr;
      if (at.marks.zero | at.marks.direct)
        transform_marked_tile<kTile>(args.epilogue, m + t * 16, stride, rows, target, row, at.marks, residual, y);
      else
        transform_tile<kTile, false>(args.epilogue, m + t * 16, stride, rows, target, row, at.marks, residual, y);
    }
  }
}

// Stores outputs of channels [channel, channel + 16) of a group after the epilogue: `sums`, [count][16], or zeros.
template <int kTile, class Map>
ENGINE_NOINLINE void store_outputs(const WinogradArgs& args, const Group& group, std::int64_t channel,
                                   const std::int64_t* outputs, std::int64_t count, const float* sums,
                                   const OutputOperands<Map>& operands) {
  const ConvShape& s = args.shape;
  const std::int64_t out = group.out_first + channel;
  for (int l = 0; l < 16; l += kLanes) {
    RowTarget<Map> target = row_target(args, operands, out + l);
    for (std::int64_t i = 0; i < count; i += target.cols) {
      const TilePosition at = position(args, outputs[i] / 16);
      const std::int64_t bit = outputs[i] % 16;
      const std::int64_t h = at.h + bit / kTile * s.dilation_h, w = at.w + bit % kTile * s.dilation_w;
      Vec run[kTile] = {};
      for (target.cols = 0; i + target.cols < count; ++target.cols) {
        const bool is_next = outputs[i + target.cols] == outputs[i] + target.cols;
        if (!is_next || (target.cols > 0 && (bit + target.cols) % kTile == 0)) break;
        if (sums) run[target.cols] = load(sums + (i + target.cols) * 16 + l);
      }
      const std::int64_t place = (out / 16 * s.out_h + h) * s.out_w * 16 + w * 16 + l;
      finish_row(args.epilogue, run, target,
                 operands.residual ? operands.residual + at.image * args.residual_batch + place : nullptr,
                 operands.y + at.image * args.y_batch + place);
    }
  }
}

// The product for one point: `tiles` pixels of V, of `channels`, times the weights of one channel tile. Meanwhile
// prefetches `next`, the weights of the next point; null if there are none. If `taps` is 9, the sums of windows.
ENGINE_NOINLINE void multiply(const WinogradArgs& args, const float* v, std::int64_t v_block, const float* u,
                              std::int64_t channels, std::int64_t width, std::int64_t tiles, float* m,
                              std::int64_t m_block, const float* next, int taps = 1) {
  static const EpilogueArgs kPlain{};
  const std::int64_t count = (tiles + args.pixels - 1) / args.pixels;
  const int pixels = static_cast<int>(tiles / count);
  const std::int64_t wide = tiles % count;
  const int vectors = static_cast<int>(width / kLanes);
  TileCall call = {};
  call.x_block = v_block;
  call.w = u;
  call.w_block = 16 * taps * width;
  call.x_col = v_block / taps;
  call.blocks = static_cast<std::int32_t>(blocks_of(channels));
  call.rows = 1;
  call.cols = taps;
  call.depth = 16;
  call.last_depth = static_cast<std::int32_t>(channels - 16 * (call.blocks - 1));
  call.y_block = m_block;
  call.y_pixel = 16;
  call.epilogue = &kPlain;
  const TileFn wider = wide > 0 ? tile_kernel(vectors, pixels + 1, PixelStep::kBlocked1) : nullptr;
  const TileFn plain = tile_kernel(vectors, pixels, PixelStep::kBlocked1);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (next) prefetch_part(call, next, width, channels * taps, i, count);
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

// Channel tiles that share a block, and stay together.
ENGINE_INLINE std::int64_t tiles_together(const WinogradArgs& args) {
  std::int64_t together = 1;
  while (together * args.tile_channels % 16 != 0) ++together;
  return together;
}

// One worker's share of a fused step: a range of the tiles of all groups, and of the channel tiles of each group.
struct FusedShare {
  WorkRange tiles, channels;
};
FusedShare fused_share(const WinogradArgs& args, const KernelContext& context) {
  const std::int64_t all = args.groups * args.tiles;
  if (!args.by_channels) return {split_work(all, context.worker, context.workers), {0, INT64_MAX}};
  const std::int64_t together = tiles_together(args);
  const std::int64_t parts = (group_at(args, 0).tiles + together - 1) / together;
  int split = static_cast<int>(min64(context.workers, parts));
  while (split > 1 && context.workers % split != 0) --split;
  if (split < 1) split = 1;
  const WorkRange own = split_work(parts, context.worker % split, split);
  return {split_work(all, context.worker / split, context.workers / split), {own.begin * together, own.end * together}};
}

// The input from which a worker computes some channel tiles of a group, and its memory (see `WinogradScratch`).
template <class Map>
struct GroupWork {
  Group group;
  WorkRange channels;
  const Map* x;
  const float* u;
  OutputOperands<Map> operands;
  WinogradScratch scratch;
  float* memory;

  float* windows() const { return memory + scratch.windows; }
  float* sums() const { return memory + scratch.sums; }
  float* own() const { return memory + scratch.own; }
  float* peaks() const { return memory + scratch.peaks; }
  std::int64_t* outputs() const { return reinterpret_cast<std::int64_t*>(memory + scratch.outputs); }
  WinogradTile* tiles() const { return reinterpret_cast<WinogradTile*>(memory + scratch.tiles); }
  WinogradMarks* marks() const { return reinterpret_cast<WinogradMarks*>(memory + scratch.marks); }
};

// Copies the windows of `count` outputs in some blocks of input channels to [block][9][count][16].
template <int kTile, class Map>
ENGINE_NOINLINE void gather_windows(const WinogradArgs& args, const GroupWork<Map>& work, const WorkRange& blocks,
                                    const std::int64_t* outputs, std::int64_t count) {
  const ConvShape& s = args.shape;
  const std::int64_t map = s.in_h * s.in_w * 16;
  for (std::int64_t i = 0; i < count; ++i) {
    const TilePosition at = position(args, outputs[i] / 16);
    const std::int64_t h = at.h + outputs[i] % 16 / kTile * s.dilation_h - s.pad_top;
    const std::int64_t w = at.w + outputs[i] % kTile * s.dilation_w - s.pad_left;
    const Map* image = work.x + at.image * args.x_batch + (work.group.in_first / 16 + blocks.begin) * map;
    for (int tap = 0; tap < 9; ++tap) {
      const std::int64_t row = h + tap / 3 * s.dilation_h, col = w + tap % 3 * s.dilation_w;
      const bool is_inside = row >= 0 && row < s.in_h && col >= 0 && col < s.in_w;
      const Map* from = image + (row * s.in_w + col) * 16;
      float* to = work.windows() + (tap * count + i) * 16;
      for (std::int64_t b = blocks.begin; b < blocks.end; ++b, from += map, to += 9 * count * 16)
        for (int l = 0; l < 16; l += kLanes) store(to + l, is_inside ? load(from + l) : zero());
    }
  }
}

// Sets all but input channels [first, last) of `count` windows to zero. Returns whether the rest is finite.
ENGINE_NOINLINE bool keep_channels(float* windows, std::int64_t blocks, std::int64_t count, std::int64_t first,
                                   std::int64_t last) {
  VecInt most = {};
  for (std::int64_t b = 0; b < blocks; ++b)
    for (int l = 0; l < 16; l += kLanes) {
      const VecInt magnitudes = magnitudes_of(first - b * 16, last - b * 16, l), kept = magnitudes != 0;
      for (float* at = windows + b * 9 * count * 16 + l; at < windows + (b + 1) * 9 * count * 16; at += 16) {
        const VecInt value = (VecInt)load(at) & kept;
        most = larger(most, value & magnitudes);
        store(at, (Vec)value);
      }
    }
  return largest(most) < kInfinite;
}

// Computes `count` outputs of merged groups directly, each group by itself: zero times infinity would be NaN.
template <int kTile, class Map>
ENGINE_NOINLINE void sum_groups_apart(const WinogradArgs& args, const GroupWork<Map>& work, const std::int64_t* outputs,
                                      std::int64_t count) {
  const Group& group = work.group;
  const std::int64_t ins = args.shape.in_channels / args.shape.groups;
  const std::int64_t outs = args.shape.out_channels / args.shape.groups;
  for (std::int64_t in = 0, out = 0; in < group.ins; in += ins, out += outs) {
    const WorkRange blocks = {in / 16, blocks_of(in + ins)};
    const std::int64_t depth = min64(group.ins, blocks.end * 16) - blocks.begin * 16;
    gather_windows<kTile>(args, work, blocks, outputs, count);
    keep_channels(work.windows(), blocks.end - blocks.begin, count, in - blocks.begin * 16,
                  in + ins - blocks.begin * 16);
    for (std::int64_t t = work.channels.begin; t < work.channels.end; ++t) {
      const std::int64_t width = group.width(t), channel = t * args.tile_channels, block = channel / 16;
      const WorkRange own = {max64(out, channel), min64(out + outs, channel + width)};
      if (own.begin >= own.end) continue;
      const float* weights = work.u + group.direct + channel * group.ins * 9 + blocks.begin * 16 * 9 * width;
      multiply(args, work.windows(), 9 * count * 16, weights, depth, width, count, work.sums() + channel % 16,
               count * 16, nullptr, 9);
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t c = own.begin; c < own.end; ++c)
          work.own()[(c / 16 * count + i) * 16 + c % 16] = work.sums()[((c / 16 - block) * count + i) * 16 + c % 16];
    }
  }
  const std::int64_t end = min64(work.channels.end * args.tile_channels, group.outs);
  for (std::int64_t c = work.channels.begin * args.tile_channels; c < end; c += 16)
    store_outputs<kTile>(args, group, c, outputs, count, work.own() + c * count, work.operands);
}

// Computes `count` outputs directly.
template <int kTile, class Map>
ENGINE_NOINLINE void sum_outputs(const WinogradArgs& args, const GroupWork<Map>& work, const std::int64_t* outputs,
                                 std::int64_t count) {
  const Group& group = work.group;
  const std::int64_t blocks = blocks_of(group.ins);
  gather_windows<kTile>(args, work, {0, blocks}, outputs, count);
  if (args.has_merged_groups && !keep_channels(work.windows(), blocks, count, 0, group.ins))
    return sum_groups_apart<kTile>(args, work, outputs, count);
  for (std::int64_t t = work.channels.begin; t < work.channels.end; ++t) {
    const std::int64_t width = group.width(t), channel = t * args.tile_channels, block = channel / 16 * 16;
    const float* weights = work.u + group.direct + channel * group.ins * 9;
    const float* next = t + 1 < work.channels.end ? weights + group.ins * 9 * width : nullptr;
    multiply(args, work.windows(), 9 * count * 16, weights, group.ins, width, count, work.sums() + channel % 16,
             count * 16, next, 9);
    const bool is_block_done = (channel + width) % 16 == 0 || t == group.tiles - 1;
    if (!is_block_done) continue;
    for (std::int64_t c = block; c < channel + width; c += 16)
      store_outputs<kTile>(args, group, c, outputs, count, work.sums() + (c - block) * count, work.operands);
  }
}

// Stores the outputs of a tile that see zeros only.
template <int kTile, class Map>
ENGINE_NOINLINE void store_zeros(const WinogradArgs& args, const GroupWork<Map>& work, std::int64_t tile,
                                 std::uint32_t bits) {
  std::int64_t outputs[16];
  const std::int64_t count = append_outputs(tile, bits, outputs, 0);
  const std::int64_t end = min64(work.channels.end * args.tile_channels, work.group.outs);
  for (std::int64_t c = work.channels.begin * args.tile_channels; c < end; c += 16)
    store_outputs<kTile>(args, work.group, c, outputs, count, static_cast<const float*>(nullptr), work.operands);
}

// Transforms `count` tiles, and multiplies and stores them. `next`: weights that are read next, or null.
template <int kTile, class Map>
void fuse_tiles(const WinogradArgs& args, const GroupWork<Map>& work, std::int64_t count, const float* next) {
  constexpr int kPoints = Transform<kTile>::kPoints * Transform<kTile>::kPoints;
  const Group& group = work.group;
  const std::int64_t ins = group.ins, in_blocks = blocks_of(ins);
  const std::int64_t v_stride = winograd_point_stride(in_blocks, args.block_tiles);
  const std::int64_t m_stride = winograd_point_stride(blocks_of(args.tile_channels), args.block_tiles);
  float *v = work.windows(), *m = work.sums();
  for (std::int64_t b = 0; b < in_blocks; ++b)
    transform_input<kTile>(args, work.x, group.in_first / 16 + b, work.tiles(), count, v + b * count * 16, v_stride);
  // A vector narrower than a block (lanes 4, one vector) fills a block in several channel tiles.
  for (std::int64_t t = work.channels.begin; t < work.channels.end; ++t) {
    const std::int64_t width = group.width(t), channel = t * args.tile_channels;
    const float* weights = work.u + group.weights + channel * ins * kPoints;
    const bool is_last = t == work.channels.end - 1;
    for (int p = 0; p < kPoints; ++p)
      multiply(args, v + p * v_stride, count * 16, weights + p * ins * width, ins, width, count,
               m + p * m_stride + channel % 16, count * 16,
               is_last && p == kPoints - 1 ? next : weights + (p + 1) * ins * width);
    const bool is_block_done = (channel + width) % 16 == 0 || t == group.tiles - 1;
    if (!is_block_done) continue;
    for (std::int64_t c = channel / 16 * 16; c < channel + width; c += 16)
      transform_output<kTile>(args, m + (c - channel / 16 * 16) * count, m_stride, group, c, work.tiles(), count,
                              work.operands);
  }
}

// Computes tiles [range.begin, range.end) of a group: judges them until enough of them can be transformed together.
template <int kTile, class Map>
void fuse_group(const WinogradArgs& args, const GroupWork<Map>& work, const WorkRange& range) {
  constexpr int kPoints = Transform<kTile>::kPoints * Transform<kTile>::kPoints;
  const float* first_weights =
      work.u + work.group.weights + work.channels.begin * args.tile_channels * work.group.ins * kPoints;
  std::int64_t waiting = 0, outputs = 0;  // tiles to transform, and outputs to sum
  for (std::int64_t at = range.begin; at < range.end;) {
    // Blocks have equal sizes if all remaining tiles are transformed.
    const std::int64_t rest = waiting + range.end - at, parts = (rest + args.block_tiles - 1) / args.block_tiles;
    const std::int64_t block = (rest + parts - 1) / parts;
    while (waiting < block && at < range.end) {
      const std::int64_t next = min64(range.end, at + min64(kWinogradJudged, block - waiting));
      judge_tiles<kTile>(args, work.x, work.group, work.u[args.limit_at], at, next, work.peaks(), work.marks());
      TilePosition tile = position(args, at);
      for (const WinogradMarks* marks = work.marks(); at < next; ++at, ++marks, advance(args, tile)) {
        if (marks->transformed)
          work.tiles()[waiting++] = {tile.image, tile.h, tile.w, *marks};
        else if (marks->zero)
          store_zeros<kTile>(args, work, at, marks->zero);
        outputs = append_outputs(at, marks->direct, work.outputs(), outputs);
        for (; outputs >= work.scratch.most_outputs; outputs -= work.scratch.most_outputs) {
          sum_outputs<kTile>(args, work, work.outputs(), work.scratch.most_outputs);
          for (std::int64_t i = work.scratch.most_outputs; i < outputs; ++i)
            work.outputs()[i - work.scratch.most_outputs] = work.outputs()[i];
        }
      }
    }
    if (waiting == 0) continue;
    fuse_tiles<kTile>(args, work, waiting, at < range.end ? first_weights : nullptr);
    waiting = 0;
  }
  if (outputs > 0) sum_outputs<kTile>(args, work, work.outputs(), outputs);
}

// A worker's part of a step for some channel tiles of a group.
template <class Map>
ENGINE_INLINE GroupWork<Map> group_work(const WinogradArgs& args, void* const* buffers, const KernelContext& context,
                                        std::int64_t index, const WorkRange& channels) {
  GroupWork<Map> work = {};
  work.group = group_at(args, index);
  work.channels = {channels.begin, min64(channels.end, work.group.tiles)};
  work.x = static_cast<const Map*>(buffers[0]);
  work.u = static_cast<const float*>(buffers[1]);
  work.operands = output_operands<Map>(args, buffers, 2);
  work.scratch = winograd_scratch(args);
  work.memory = static_cast<float*>(context.scratch);
  return work;
}

template <int kTile, class Map>
void fused(const WinogradArgs& args, void* const* buffers, const KernelContext& context) {
  const FusedShare share = fused_share(args, context);
  for (std::int64_t at = share.tiles.begin; at < share.tiles.end;) {
    const std::int64_t begin = at % args.tiles, end = min64(args.tiles, begin + share.tiles.end - at);
    fuse_group<kTile>(args, group_work<Map>(args, buffers, context, at / args.tiles, share.channels), {begin, end});
    at += end - begin;
  }
}

template <class Map>
void winograd_fused(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  return args.output_tile == 2 ? fused<2, Map>(args, buffers, context) : fused<4, Map>(args, buffers, context);
}

// In phases: the marks of the tiles of all groups.
ENGINE_INLINE WinogradMarks* all_marks(const WinogradArgs& args, void* const* buffers) {
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  float* v = static_cast<float*>(buffers[temporaries_at(args)]);
  return reinterpret_cast<WinogradMarks*>(v + points *
                                                  winograd_point_stride(blocks_of(args.shape.in_channels), args.tiles));
}

// Split over (group, tile).
template <class Map>
void winograd_judge(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const WorkRange range = split_work(args.groups * args.tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t begin = i % args.tiles, end = min64(args.tiles, begin + range.end - i);
    const GroupWork<Map> work = group_work<Map>(args, buffers, context, i / args.tiles, {});
    const auto judge = args.output_tile == 2 ? judge_tiles<2, Map> : judge_tiles<4, Map>;
    judge(args, work.x, work.group, work.u[args.limit_at], begin, end, work.peaks(), all_marks(args, buffers) + i);
    i += end - begin;
  }
}

// Split over (channel block, tile).
template <class Map>
void winograd_input(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  float* v = static_cast<float*>(buffers[temporaries_at(args)]);
  const std::int64_t blocks = blocks_of(args.shape.in_channels);
  const std::int64_t stride = winograd_point_stride(blocks, args.tiles);
  const WorkRange range = split_work(blocks * args.tiles, context.worker, context.workers);
  const auto transform = args.output_tile == 2 ? transform_input<2, Map> : transform_input<4, Map>;
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t block = i / args.tiles, begin = i % args.tiles, end = min64(args.tiles, begin + range.end - i);
    const std::int64_t index = min64(block * 16 / args.in_group, args.groups - 1);
    const GroupWork<Map> work = group_work<Map>(args, buffers, context, index, {});
    const WinogradMarks* marks = all_marks(args, buffers) + index * args.tiles;
    float* to = v + (block * args.tiles + count_transformed(marks, 0, begin)) * 16;
    for (std::int64_t at = begin, next; at < end; at = next) {
      next = min64(end, at + work.scratch.most_tiles);
      const std::int64_t count = list_transformed(args, marks, at, next, work.tiles());
      transform(args, work.x, block, work.tiles(), count, to, stride);
      to += count * 16;
    }
    i += end - begin;
  }
}

// Split over (channel tile, point), so that each weight is read by one worker.
void winograd_gemm_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const float* v = static_cast<const float*>(buffers[temporaries_at(args)]);
  const float* u = static_cast<const float*>(buffers[1]);
  float* m = static_cast<float*>(buffers[temporaries_at(args) + 1]);
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  const std::int64_t v_stride = winograd_point_stride(blocks_of(args.shape.in_channels), args.tiles);
  const std::int64_t m_stride = winograd_point_stride(blocks_of(args.shape.out_channels), args.tiles);
  const WorkRange range = split_work(tiles_of_all(args) * points, context.worker, context.workers);
  std::int64_t counted = -1, count = 0;  // a group, and its tiles that are transformed
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto [group, t] = channel_tile_at(args, i / points);
    const std::int64_t index = group.in_first / args.in_group;
    if (index != counted) count = count_transformed(all_marks(args, buffers) + index * args.tiles, 0, args.tiles);
    counted = index;
    if (count == 0) continue;
    const std::int64_t p = i % points, ins = group.ins, width = group.width(t), channel = t * args.tile_channels;
    const float* weights = u + group.weights + channel * ins * points + p * ins * width;
    const std::int64_t out = group.out_first + channel;
    multiply(args, v + p * v_stride + group.in_first * args.tiles, args.tiles * 16, weights, ins, width, count,
             m + p * m_stride + out / 16 * args.tiles * 16 + out % 16, args.tiles * 16,
             i + 1 < range.end ? weights + ins * width : nullptr);
  }
}

// Transforms tiles [begin, end) of the 16 channels of `block`, or stores zeros.
template <int kTile, class Map>
void finish_tiles(const WinogradArgs& args, void* const* buffers, const GroupWork<Map>& work, std::int64_t block,
                  const WinogradMarks* marks, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = winograd_point_stride(blocks_of(args.shape.out_channels), args.tiles);
  const std::int64_t channel = block * 16 - work.group.out_first;
  const float* m = static_cast<const float*>(buffers[temporaries_at(args) + 1]);
  m += (block * args.tiles + count_transformed(marks, 0, begin)) * 16;
  for (std::int64_t next; begin < end; begin = next) {
    next = min64(end, begin + work.scratch.most_tiles);
    const std::int64_t count = list_transformed(args, marks, begin, next, work.tiles());
    transform_output<kTile>(args, m, stride, work.group, channel, work.tiles(), count, work.operands);
    m += count * 16;
    for (std::int64_t tile = begin; count < next - begin && tile < next; ++tile) {
      if (marks[tile].transformed || !marks[tile].zero) continue;
      std::int64_t outputs[16];
      const std::int64_t zeros = append_outputs(tile, marks[tile].zero, outputs, 0);
      store_outputs<kTile>(args, work.group, channel, outputs, zeros, static_cast<const float*>(nullptr),
                           work.operands);
    }
  }
}

ENGINE_INLINE std::int64_t count_direct(const WinogradMarks* marks, std::int64_t tiles) {
  std::int64_t count = 0;
  for (std::int64_t tile = 0; tile < tiles; ++tile)
    if (marks[tile].direct) count += __builtin_popcount(marks[tile].direct);
  return count;
}

// Computes the outputs [begin, end) of those that are summed directly in the tiles of a group.
template <int kTile, class Map>
void sum_range(const WinogradArgs& args, const GroupWork<Map>& work, const WinogradMarks* marks, std::int64_t begin,
               std::int64_t end) {
  std::int64_t before = 0, count = 0;
  for (std::int64_t tile = 0; before < end && tile < args.tiles; ++tile)
    for (std::uint32_t bits = marks[tile].direct; bits; bits &= bits - 1, ++before)
      if (before >= begin && before < end) count = append_outputs(tile, bits & -bits, work.outputs(), count);
  sum_outputs<kTile>(args, work, work.outputs(), count);
}

// Split over (channel block, tile), and over (outputs that are summed directly, channel tile).
template <int kTile, class Map>
void finish(const WinogradArgs& args, void* const* buffers, const KernelContext& context) {
  const WinogradMarks* marks = all_marks(args, buffers);
  const std::int64_t blocks = blocks_of(args.shape.out_channels);
  const WorkRange range = split_work(blocks * args.tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t block = i / args.tiles, begin = i % args.tiles;
    const std::int64_t end = min64(args.tiles, begin + range.end - i);
    const std::int64_t index = min64(block * 16 / args.out_group, args.groups - 1);
    finish_tiles<kTile>(args, buffers, group_work<Map>(args, buffers, context, index, {}), block,
                        marks + index * args.tiles, begin, end);
    i += end - begin;
  }
  const std::int64_t together = tiles_together(args);
  for (std::int64_t index = 0; index < args.groups; ++index, marks += args.tiles) {
    const std::int64_t count = count_direct(marks, args.tiles);
    if (count == 0) continue;
    GroupWork<Map> work = group_work<Map>(args, buffers, context, index, {});
    const std::int64_t parts = (count + work.scratch.most_outputs - 1) / work.scratch.most_outputs;
    const std::int64_t splits = (work.group.tiles + together - 1) / together;
    const WorkRange own = split_work(parts * splits, context.worker, context.workers);
    for (std::int64_t i = own.begin; i < own.end;) {
      // Channel tiles of the same outputs share the gathered windows.
      const std::int64_t first = i % splits, last = min64(splits, first + own.end - i);
      const WorkRange share = split_work(count, static_cast<int>(i / splits), static_cast<int>(parts));
      work.channels = {first * together, min64(last * together, work.group.tiles)};
      sum_range<kTile>(args, work, marks, share.begin, share.end);
      i += last - first;
    }
  }
}

template <class Map>
void winograd_output(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  return args.output_tile == 2 ? finish<2, Map>(args, buffers, context) : finish<4, Map>(args, buffers, context);
}

void winograd_weights_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const float* w = static_cast<const float*>(buffers[0]);
  float* u = static_cast<float*>(buffers[1]);
  copy_weights(args, w, u, context);
  if (context.worker == 0) u[args.limit_at] = largest_input(args, w);
  if (args.output_tile == 2)
    transform_weights<2>(args, w, u, context);
  else
    transform_weights<4>(args, w, u, context);
}

}  // namespace

extern const KernelEntry winograd_kernels[] = {{"winograd_fused_f32", winograd_fused<float>, &tile_traits},
                                               {"winograd_fused_bf16", winograd_fused<Bf16>, &tile_traits},
                                               {"winograd_judge_f32", winograd_judge<float>, &tile_traits},
                                               {"winograd_input_f32", winograd_input<float>, &tile_traits},
                                               {"winograd_judge_bf16", winograd_judge<Bf16>, &tile_traits},
                                               {"winograd_input_bf16", winograd_input<Bf16>, &tile_traits},
                                               {"winograd_gemm_f32", winograd_gemm_f32, &tile_traits},
                                               {"winograd_output_f32", winograd_output<float>, &tile_traits},
                                               {"winograd_output_bf16", winograd_output<Bf16>, &tile_traits},
                                               {"winograd_weights_f32", winograd_weights_f32, &tile_traits},
                                               {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
