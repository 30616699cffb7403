// Direct convolution on NCHWc16 by tiles, for any element type. Included by kernel files only.
#pragma once

#include "kernels/conv.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using simd::kLanes;

// One worker's state for a step. Tile describes the kernels: struct {
//   using Call;                            the type of a kernel call
//   static constexpr int kDepthStep;       the values of depth that a kernel processes at a time
//   static constexpr bool kIsPaddingZero;  whether taps in the padding may be skipped
//   static constexpr PixelStep kStep1, kStep2;  the steps between pixels for strides of 1 and 2
//   struct More;                           what `complete` needs
//   static kernel(more, vectors, pixels, step);
//   static complete(more, channel, pixel, call);  sets what only this type of call has, for a tile from `channel` and
//                                          `pixel` on, counted over all images, groups and pixels
// }.
template <class Tile>
struct ConvWalk {
  using Call = typename Tile::Call;
  const ConvArgs* args;
  typename Tile::More more;
  const typename Call::ElementType *x, *w;
  const float *bias, *scale;
  decltype(Call::residual) residual;
  decltype(Call::y) y;
  std::int64_t* offsets;               // indirect tiles: [slot][taps][pixels]
  typename Call::ElementType* copies;  // or [slot][block][pixels][16]
  std::int64_t slots;                  // the number of tiles that have a slot; tile i is in slot i % slots
  std::int64_t slot_size, copy_size;
  std::int64_t filled[kConvOffsetSlots];  // the first pixel of the tile that a slot is for, or -1
  std::int64_t segments;                  // rows, or 1 if tiles are flat
  std::int64_t segment_pixels;
  std::int64_t tiles;  // tiles of a segment: first `wide` tiles of pixels + 1 pixels, then tiles of `pixels`
  std::int64_t wide;
  int pixels;
  std::int64_t channel_tiles;          // of a group
  std::int64_t last_depth, reduction;  // of the packed weights
  std::int64_t group_size;             // of the packed weights of a group
  std::int64_t channel_end;            // of this worker's channel tiles
  std::int64_t part, parts;            // this pixel tile among those that use the same channel tile, and their number
};

// The kernel rows (or columns) [begin, end) whose taps, from `start`, lie inside 0..size.
ENGINE_INLINE WorkRange inside(std::int64_t start, std::int64_t size, std::int64_t kernel, std::int64_t dilation) {
  const std::int64_t begin = start < 0 ? (-start + dilation - 1) / dilation : 0;
  const std::int64_t end = start >= size ? 0 : (size - start + dilation - 1) / dilation;
  return {min64(begin, kernel), max64(min64(begin, kernel), min64(end, kernel))};
}

void fill_offsets(const ConvArgs& args, std::int64_t first_pixel, int pixels, WorkRange rows, WorkRange cols,
                  std::int64_t* to) {
  const ConvShape& s = args.shape;
  for (std::int64_t kh = rows.begin; kh < rows.end; ++kh)
    for (std::int64_t kw = cols.begin; kw < cols.end; ++kw)
      for (int p = 0; p < pixels; ++p) {
        const std::int64_t pixel = first_pixel + p;
        const std::int64_t ih = pixel / s.out_w * s.stride_h - s.pad_top + kh * s.dilation_h;
        const std::int64_t iw = pixel % s.out_w * s.stride_w - s.pad_left + kw * s.dilation_w;
        const bool is_inside = ih >= 0 && ih < s.in_h && iw >= 0 && iw < s.in_w;
        *to++ = is_inside ? (ih * s.in_w + iw) * args.x_pixel : kPaddingOffset;
      }
}

// Copies pixels of all blocks, `stride` apart, to adjacent ones.
template <class Element>
void copy_pixels(const ConvArgs& args, const Element* image, std::int64_t oh, std::int64_t ow, int pixels,
                 Element* to) {
  const ConvShape& s = args.shape;
  const std::int64_t map = s.in_h * s.in_w * 16;
  for (std::int64_t block = 0; block < args.pack.blocks; ++block, image += map) {
    std::int64_t h = oh, w = ow;
    for (int p = 0; p < pixels; ++p, to += 16) {
      __builtin_memcpy(to, image + (h * s.stride_h * s.in_w + w * s.stride_w) * 16, 16 * sizeof(Element));
      if (++w == s.out_w) {
        w = 0;
        ++h;
      }
    }
  }
}

// A pixel tile. Positions are advanced rather than computed, since a division takes as long as a part of a tile.
struct TilePosition {
  std::int64_t n, oh, ow;  // the image and the first pixel
  std::int64_t index;      // of the tile in its segment
  std::int64_t slot;       // of its offsets
};

template <class Tile>
ENGINE_INLINE TilePosition position_of(const ConvWalk<Tile>& walk, std::int64_t tile) {
  const std::int64_t image_tiles = walk.segments * walk.tiles, in_image = tile % image_tiles;
  const std::int64_t segment = in_image / walk.tiles, index = in_image % walk.tiles;
  const std::int64_t first_pixel = segment * walk.segment_pixels + index * walk.pixels + min64(index, walk.wide);
  const std::int64_t out_w = walk.args->shape.out_w;
  return {tile / image_tiles, first_pixel / out_w, first_pixel % out_w, index, 0};
}

template <class Tile>
ENGINE_INLINE int pixels_of(const ConvWalk<Tile>& walk, const TilePosition& at) {
  return walk.pixels + (at.index < walk.wide);
}

template <class Tile>
ENGINE_INLINE void advance(const ConvWalk<Tile>& walk, TilePosition& at) {
  const ConvShape& s = walk.args->shape;
  at.ow += pixels_of(walk, at);
  for (; at.ow >= s.out_w; at.ow -= s.out_w) ++at.oh;
  if (at.oh == s.out_h) {
    at.oh = 0;
    ++at.n;
  }
  if (++at.index == walk.tiles) at.index = 0;
  if (++at.slot == walk.slots) at.slot = 0;
}

// Makes a pixel tile prefetch its part of the next channel tile's weights; `in_group` counts channel tiles of a group.
template <class Tile>
ENGINE_INLINE void ask_for_next(const ConvWalk<Tile>& walk, std::int64_t group, std::int64_t in_group,
                                typename Tile::Call& call) {
  const PackArgs& pack = walk.args->pack;
  const std::int64_t width = in_group == walk.channel_tiles - 1 ? pack.tail_channels : pack.tile_channels;
  const auto* from = walk.w + group * walk.group_size + in_group * pack.tile_channels * walk.reduction;
  prefetch_part(call, from, width, walk.reduction / Tile::kDepthStep, walk.part, walk.parts);
}

// Runs a pixel tile for channel tiles [range.begin, range.end), counted over all groups.
template <class Tile>
void run_tile(ConvWalk<Tile>& walk, const TilePosition& position, WorkRange range) {
  const ConvArgs& args = *walk.args;
  const ConvShape& s = args.shape;
  const int pixels = pixels_of(walk, position);
  const std::int64_t n = position.n, oh = position.oh, ow = position.ow;
  const std::int64_t ih = oh * s.stride_h - s.pad_top, iw = ow * s.stride_w - s.pad_left;

  const bool is_pointwise = s.kernel_h == 1 && s.kernel_w == 1 && s.pad_top == 0 && s.pad_left == 0;
  const bool spans_rows = ow + pixels > s.out_w;
  const bool has_all_rows = ih >= 0 && ih + (s.kernel_h - 1) * s.dilation_h < s.in_h;
  const WorkRange rows = spans_rows || !Tile::kIsPaddingZero || has_all_rows
                             ? WorkRange{0, s.kernel_h}
                             : inside(ih, s.in_h, s.kernel_h, s.dilation_h);
  const std::int64_t last_iw = iw + (pixels - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w;
  const bool is_dense = args.copies ? true
                        : spans_rows
                            ? is_pointwise && s.stride_h == 1 && s.stride_w == 1 && s.out_w == s.in_w
                            : iw >= 0 && last_iw < s.in_w && s.stride_w <= 2 && (Tile::kIsPaddingZero || has_all_rows);
  const PixelStep step = !is_dense                        ? PixelStep::kIndirect
                         : args.copies || s.stride_w == 1 ? Tile::kStep1
                                                          : Tile::kStep2;
  // Taps of a single row are adjacent in the weights, so those that lie in the padding for all pixels are skipped, too.
  WorkRange cols = {0, args.pack.cols};
  if (!is_dense && !spans_rows && Tile::kIsPaddingZero && rows.end - rows.begin == 1) {
    const std::int64_t last_pixel = iw + (pixels - 1) * s.stride_w;
    cols.begin = inside(last_pixel, s.in_w, s.kernel_w, s.dilation_w).begin;
    cols.end = max64(cols.begin, inside(iw, s.in_w, s.kernel_w, s.dilation_w).end);
  }
  std::int64_t* offsets = walk.offsets + position.slot * walk.slot_size;
  const auto* image = walk.x + n * args.x_batch;
  const std::int64_t first_pixel = oh * s.out_w + ow;
  if (args.copies) {
    auto* copy = walk.copies + position.slot * walk.copy_size;
    const std::int64_t in_batch = n * s.out_h * s.out_w + first_pixel;
    if (walk.filled[position.slot] != in_batch) copy_pixels(args, image, oh, ow, pixels, copy);
    walk.filled[position.slot] = in_batch;
    image = copy;
  } else if (is_dense) {
    image += ((ih + rows.begin * s.dilation_h) * s.in_w + iw) * args.x_pixel;
  } else if (walk.filled[position.slot] != first_pixel) {
    fill_offsets(args, first_pixel, pixels, rows, cols, offsets);
    walk.filled[position.slot] = first_pixel;
  }

  const PackArgs& pack = args.pack;
  const std::int64_t in_map = s.in_h * s.in_w * args.x_pixel;
  const std::int64_t first_tap = rows.begin * pack.cols + cols.begin;
  const std::int64_t first_output = args.y_offset + oh * args.y_row + ow * args.y_pixel;

  typename Tile::Call call = {};
  call.x_block = args.copies ? pixels * 16 : in_map;
  call.x_row = s.dilation_h * s.in_w * args.x_pixel;
  call.x_col = s.dilation_w * args.x_pixel;
  call.offsets = offsets;
  call.blocks = pack.blocks;
  call.rows = static_cast<std::int32_t>(rows.end - rows.begin);
  call.cols = static_cast<std::int32_t>(cols.end - cols.begin);
  call.depth = 16;
  call.last_depth = pack.last_depth;
  call.y_block = call.residual_block = args.y_block;
  call.y_pixel = call.residual_pixel = args.y_pixel;
  call.epilogue = &args.epilogue;

  const auto full = Tile::kernel(walk.more, pack.tile_channels / kLanes, pixels, step);
  const auto tail = Tile::kernel(walk.more, pack.tail_channels / kLanes, pixels, step);
  std::int64_t group = 0, in_group = range.begin;
  if (pack.groups > 1) {
    group = range.begin / walk.channel_tiles;
    in_group = range.begin % walk.channel_tiles;
  }
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const bool is_tail = in_group == walk.channel_tiles - 1;
    const std::int64_t width = is_tail ? pack.tail_channels : pack.tile_channels;
    const std::int64_t in_channel = in_group * pack.tile_channels, channel = group * args.channel_group + in_channel;
    std::int64_t at = in_channel / 16 * args.y_block + in_channel % 16 + first_output;
    if (group > 0) at += group / args.y_group_columns * args.y_group_row + group % args.y_group_columns * args.y_group;
    call.x = image + group * args.x_group;
    call.w = walk.w + group * walk.group_size + in_channel * walk.reduction;
    call.w_block = 16 * width * pack.rows * pack.cols;
    call.w_lead = first_tap * 16 * width;
    call.w_lead_last = first_tap * walk.last_depth * width;
    call.y = walk.y + (n * args.y_batch + at);
    call.bias = walk.bias ? walk.bias + channel : nullptr;
    call.next_step = 0;
    call.scale = walk.scale ? walk.scale + channel : nullptr;
    if (args.operands.has_residual) call.residual = walk.residual + (n * args.residual_batch + at);
    Tile::complete(walk.more, channel, (n * pack.groups + group) * s.out_h * s.out_w + first_pixel, call);
    if (is_tail) {
      ++group;
      in_group = 0;
    } else {
      ++in_group;
    }
    if (walk.parts > 1 && t + 1 < walk.channel_end) ask_for_next(walk, group, in_group, call);
    (is_tail ? tail : full)(call);
  }
}

// Runs one worker's share. The pointers of `walk` must be set.
template <class Tile>
void run_conv(ConvWalk<Tile>& walk, const KernelContext& context) {
  const ConvArgs& args = *walk.args;
  const ConvShape& s = args.shape;
  const PackArgs& pack = args.pack;
  if (s.batch * s.out_h * s.out_w == 0 || pack.channels == 0) return;
  walk.offsets = static_cast<std::int64_t*>(context.scratch);
  walk.slots = min64(kConvOffsetSlots, args.tiling.tile_block > 0 ? args.tiling.tile_block : kConvOffsetSlots);
  walk.slot_size = s.kernel_h * s.kernel_w * args.tiling.pixels;
  walk.copies = reinterpret_cast<typename Tile::Call::ElementType*>(walk.offsets);
  walk.copy_size = args.pack.blocks * args.tiling.pixels * 16;
  for (std::int64_t& first_pixel : walk.filled) first_pixel = -1;
  walk.segments = args.tiling.flat ? 1 : s.out_h;
  walk.segment_pixels = args.tiling.flat ? s.out_h * s.out_w : s.out_w;
  walk.tiles = (walk.segment_pixels + args.tiling.pixels - 1) / args.tiling.pixels;
  walk.pixels = static_cast<int>(walk.segment_pixels / walk.tiles);
  walk.wide = walk.segment_pixels % walk.tiles;
  walk.channel_tiles = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  walk.last_depth = (pack.last_depth + Tile::kDepthStep - 1) / Tile::kDepthStep * Tile::kDepthStep;
  walk.reduction = (std::int64_t{16} * (pack.blocks - 1) + walk.last_depth) * pack.rows * pack.cols;
  walk.group_size = ((walk.channel_tiles - 1) * pack.tile_channels + pack.tail_channels) * walk.reduction;

  int channel_split = args.tiling.channel_split;
  if (channel_split > context.workers) channel_split = context.workers;
  while (context.workers % channel_split != 0) --channel_split;
  const WorkRange channels =
      split_work(pack.groups * walk.channel_tiles, context.worker % channel_split, channel_split);
  walk.channel_end = channels.end;
  const WorkRange pixels =
      split_work(s.batch * walk.segments * walk.tiles, context.worker / channel_split, context.workers / channel_split);
  const std::int64_t step = args.tiling.tile_block > 0 ? args.tiling.tile_block : max64(1, pixels.end - pixels.begin);
  TilePosition start = position_of(walk, pixels.begin);
  for (std::int64_t first = pixels.begin; first < pixels.end; first += step) {
    const std::int64_t last = min64(first + step, pixels.end);
    walk.parts = last - first;
    // A single tile needs its offsets only once for all channels.
    const std::int64_t channel_step = last - first == 1 ? channels.end - channels.begin : 1;
    TilePosition at = start;
    for (std::int64_t c = channels.begin; c < channels.end; c += channel_step) {
      at = start;
      for (walk.part = 0; walk.part < walk.parts; ++walk.part) {
        run_tile(walk, at, {c, c + channel_step});
        advance(walk, at);
      }
    }
    start = at;
    start.slot = 0;
  }
}

// The kernel for maps and weights without a zero point.
template <class Tile>
void conv_blocked(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvArgs& args = *static_cast<const ConvArgs*>(raw_args);
  using Element = typename Tile::Call::ElementType;
  ConvWalk<Tile> walk = {};
  walk.args = &args;
  walk.x = static_cast<const Element*>(buffers[args.x_at]);
  walk.w = static_cast<const Element*>(buffers[1]) + args.pack.packed_offset;
  int operand = 2;
  if (args.operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) walk.scale = static_cast<const float*>(buffers[operand]);
  if (args.operands.has_residual) set_map(walk.residual, buffers[args.residual_at], args.residual_bytes);
  set_map(walk.y, buffers[args.y_at], args.y_bytes);
  run_conv(walk, context);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
