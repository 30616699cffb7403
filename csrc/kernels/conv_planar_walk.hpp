// Convolution of a plain input by bands of rows, for any element type. Included by kernel files only.
#pragma once

#include "kernels/conv_planar.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE void copy_row(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}
ENGINE_INLINE void copy_row(const float* from, std::int64_t count, Bf16* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = to_bf16(from[i]);
}

// Rows [top, top + band_h) of every channel, zero outside the input.
template <class Element>
void fill_band(const PlanarConvArgs& args, const float* image, std::int64_t top, Element* band) {
  const ConvShape& s = args.shape;
  for (std::int64_t c = 0; c < s.in_channels; ++c)
    for (std::int64_t r = 0; r < args.band_h; ++r, band += args.band_w) {
      const std::int64_t ih = top + r;
      const bool is_inside = ih >= 0 && ih < s.in_h;
      const float* from = is_inside ? image + (c * s.in_h + ih) * s.in_w : nullptr;
      const std::int64_t left = is_inside ? min64(s.pad_left, args.band_w) : args.band_w;
      const std::int64_t right = is_inside ? min64(s.pad_left + s.in_w, args.band_w) : args.band_w;
      for (std::int64_t i = 0; i < left; ++i) band[i] = Element{};
      if (left < right) copy_row(from + (left - s.pad_left), right - left, band + left);
      for (std::int64_t i = right; i < args.band_w; ++i) band[i] = Element{};
    }
}

// Tile is TileF32 (tile.hpp) or TileBf16.
template <class Tile>
struct PlanarOperands {
  using Call = typename Tile::Call;
  const typename Call::ElementType* w;
  const float *bias, *scale;
  decltype(Call::residual) residual;
  decltype(Call::y) y;
};

// One output row of image `n`, whose input rows start at `x` in the band.
template <class Tile>
void run_row(const PlanarConvArgs& args, const PlanarOperands<Tile>& operands,
             const typename Tile::Call::ElementType* x, std::int64_t n, std::int64_t oh, std::int64_t* offsets) {
  const ConvShape& s = args.shape;
  const PackArgs& pack = args.pack;
  const PixelStep step = pack.cols > 1 || s.stride_w > 2 ? PixelStep::kIndirect
                         : s.stride_w == 1               ? PixelStep::kPlanar1
                                                         : PixelStep::kPlanar2;
  const std::int64_t depth = (pack.depth + Tile::kDepthStep - 1) / Tile::kDepthStep * Tile::kDepthStep;
  const std::int64_t reduction = std::int64_t{pack.blocks} * pack.rows * pack.cols * depth;
  const std::int64_t channel_tiles = (pack.channels + pack.tile_channels - 1) / pack.tile_channels;
  const std::int64_t tiles = (s.out_w + args.pixels - 1) / args.pixels;
  const std::int64_t out_map = s.out_h * s.out_w * 16;
  typename Tile::Call call = {};
  call.x_block = args.band_h * args.band_w;
  call.x_row = s.dilation_h * args.band_w;
  call.offsets = offsets;
  call.blocks = pack.blocks;
  call.rows = pack.rows;
  call.cols = pack.cols;
  call.depth = call.last_depth = pack.depth;
  call.y_block = call.residual_block = out_map;
  call.y_pixel = call.residual_pixel = 16;
  call.epilogue = &args.epilogue;
  std::int64_t ow = 0;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const int pixels = static_cast<int>(s.out_w / tiles + (i < s.out_w % tiles));
    if (step == PixelStep::kIndirect) {
      std::int64_t* to = offsets;
      for (std::int64_t r = 0; r < pack.rows; ++r)
        for (std::int64_t c = 0; c < pack.cols; ++c)
          for (int p = 0; p < pixels; ++p) *to++ = r * call.x_row + c * s.dilation_w + p * s.stride_w;
    }
    call.x = x + ow * s.stride_w;
    for (std::int64_t t = 0; t < channel_tiles; ++t) {
      const std::int64_t width = t == channel_tiles - 1 ? pack.tail_channels : pack.tile_channels;
      const std::int64_t channel = t * pack.tile_channels;
      const std::int64_t at = channel / 16 * out_map + channel % 16 + (oh * s.out_w + ow) * 16;
      call.w = operands.w + channel * reduction;
      call.w_block = std::int64_t{pack.rows} * pack.cols * depth * width;
      call.bias = operands.bias ? operands.bias + channel : nullptr;
      call.scale = operands.scale ? operands.scale + channel : nullptr;
      if (args.operands.has_residual) call.residual = operands.residual + (n * args.residual_batch + at);
      call.y = operands.y + (n * args.y_batch + at);
      Tile::kernel({}, static_cast<int>(width) / kLanes, pixels, step)(call);
    }
    ow += pixels;
  }
}

template <class Tile>
void conv_planar(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PlanarConvArgs& args = *static_cast<const PlanarConvArgs*>(raw_args);
  const ConvShape& s = args.shape;
  if (s.batch * s.out_h * s.out_w == 0) return;
  using Element = typename Tile::Call::ElementType;
  PlanarOperands<Tile> operands = {};
  const float* x = static_cast<const float*>(buffers[0]);
  operands.w = static_cast<const Element*>(buffers[1]);
  int operand = 2;
  if (args.operands.has_bias) operands.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) operands.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) set_map(operands.residual, buffers[operand++], args.residual_bytes);
  set_map(operands.y, buffers[operand], args.y_bytes);
  std::int64_t* offsets = static_cast<std::int64_t*>(context.scratch);
  Element* band = reinterpret_cast<Element*>(offsets + std::int64_t{args.pack.rows} * args.pack.cols * args.pixels);
  const WorkRange range = split_work(s.batch * s.out_h, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t n = i / s.out_h, first = i % s.out_h;
    const std::int64_t last = min64(min64(first + args.band_rows, s.out_h), first + range.end - i);
    fill_band(args, x + n * args.x_batch, first * s.stride_h - s.pad_top, band);
    for (std::int64_t oh = first; oh < last; ++oh)
      run_row(args, operands, band + (oh - first) * s.stride_h * args.band_w, n, oh, offsets);
    i += last - first;
  }
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
