// conv_blocked_int8, conv_planar_int8, conv_copy_int8: see conv_int8.hpp. y must not overlap x or w; a residual may be
// y itself.
#include "kernels/conv_int8.hpp"

#include <cstring>

#include "kernels/conv_walk.hpp"
#include "kernels/tile_int8.hpp"
#include "simd/bytes.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

template <class Tile>
void run(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvInt8Args& args = *static_cast<const ConvInt8Args*>(raw_args);
  const ConvOperands& operands = args.conv.operands;
  ConvWalk<Tile> walk = {};
  walk.args = &args.conv;
  walk.more = {static_cast<const std::int32_t*>(buffers[2]) + args.start_offset,
               args.padding,
               nullptr,
               &args.requantize,
               args.pairs_fit,
               nullptr,
               nullptr};
  walk.x = static_cast<const std::uint8_t*>(buffers[args.conv.x_at]);
  walk.w = static_cast<const std::uint8_t*>(buffers[1]) + args.conv.pack.packed_offset;
  walk.scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  if (operands.has_bias) walk.bias = static_cast<const float*>(buffers[operand++]);
  if (operands.has_residual)
    walk.residual = {static_cast<const char*>(buffers[operand++]), element_bytes_of(args.requantize.residual)};
  if (args.zero_at != 0) ++operand;
  if (args.factors_at != 0) {
    walk.more.factors = static_cast<const std::int32_t*>(buffers[args.factors_at]);
    walk.more.pixel_sums = static_cast<const std::int32_t*>(buffers[args.sums_at]);
    ++operand;
  }
  walk.y = {static_cast<char*>(buffers[operand]), element_bytes_of(args.requantize.y)};
  run_conv(walk, context);
}

void conv_blocked_int8(const void* args, void* const* buffers, const KernelContext& context) {
  run<TileInt8<>>(args, buffers, context);
}

void conv_planar_int8(const void* args, void* const* buffers, const KernelContext& context) {
  run<TileInt8<PixelStep::kPlanar1, PixelStep::kPlanar2>>(args, buffers, context);
}

// A row of a plain image as pixels of four bytes; bytes beyond the channels are zero.
void copy_plain_row(const ConvInt8Args& args, const std::uint8_t* x, std::int64_t width, std::uint8_t* to) {
  const std::int64_t channels = args.plain_channels, map = args.in_h * args.in_w;
  std::int64_t p = 0;
#if defined(__SSE2__)
  for (; p + 16 <= width; p += 16) {
    __m128i rows[4];
    for (std::int64_t c = 0; c < 4; ++c)
      rows[c] = c < channels ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + c * map + p)) : _mm_setzero_si128();
    const __m128i lower01 = _mm_unpacklo_epi8(rows[0], rows[1]), upper01 = _mm_unpackhi_epi8(rows[0], rows[1]);
    const __m128i lower23 = _mm_unpacklo_epi8(rows[2], rows[3]), upper23 = _mm_unpackhi_epi8(rows[2], rows[3]);
    __m128i* pixels = reinterpret_cast<__m128i*>(to + p * 4);
    _mm_storeu_si128(pixels, _mm_unpacklo_epi16(lower01, lower23));
    _mm_storeu_si128(pixels + 1, _mm_unpackhi_epi16(lower01, lower23));
    _mm_storeu_si128(pixels + 2, _mm_unpacklo_epi16(upper01, upper23));
    _mm_storeu_si128(pixels + 3, _mm_unpackhi_epi16(upper01, upper23));
  }
#endif
  for (; p < width; ++p) {
    std::uint32_t pixel = 0;
    for (std::int64_t c = 0; c < channels; ++c) pixel |= static_cast<std::uint32_t>(x[c * map + p]) << (8 * c);
    std::memcpy(to + p * 4, &pixel, 4);
  }
}

// Every `step`th pixel of a row of 16 channels.
void copy_pixels(const std::uint8_t* x, std::int64_t step, std::int64_t width, std::uint8_t* to) {
  for (std::int64_t p = 0; p < width; ++p) std::memcpy(to + p * 16, x + p * step * 16, 16);
}

// The copy of x with its padding, or of the pixels that are read. Split over rows.
void conv_copy_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvInt8Args& args = *static_cast<const ConvInt8Args*>(raw_args);
  const ConvShape& s = args.conv.shape;
  const std::int64_t pixel = args.conv.x_pixel, row = s.in_w * pixel;
  const std::int64_t maps = s.batch * (args.is_plain ? 1 : (s.in_channels + 15) / 16);
  const std::uint8_t* x = static_cast<const std::uint8_t*>(buffers[0]);
  std::uint8_t* copy = static_cast<std::uint8_t*>(buffers[args.copy_at]);
  std::uint8_t zero = args.padding[0];
  if (args.zero_at != 0) zero = *static_cast<const std::uint8_t*>(buffers[args.zero_at]) ^ args.zero_flip;
  const WorkRange range = split_work(maps * s.in_h, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t map = item / s.in_h, ih = item % s.in_h * args.step_h - args.pad_top;
    std::uint8_t* to = copy + item * row;
    if (ih < 0 || ih >= args.in_h) {
      std::memset(to, zero, static_cast<std::size_t>(row));
      continue;
    }
    if (args.step_w > 1) {
      copy_pixels(x + (map * args.in_h + ih) * args.in_w * pixel, args.step_w, s.in_w, to);
      continue;
    }
    // The copy ends with the last window, which may be inside x.
    const std::int64_t left = min64(args.pad_left, s.in_w), width = min64(args.in_w, s.in_w - left);
    const std::int64_t right = left + width;
    std::memset(to, zero, static_cast<std::size_t>(left * pixel));
    if (args.is_plain)
      copy_plain_row(args, x + (map * args.plain_channels * args.in_h + ih) * args.in_w, width, to + left * pixel);
    else
      std::memcpy(to + left * pixel, x + (map * args.in_h + ih) * args.in_w * pixel,
                  static_cast<std::size_t>(width * pixel));
    std::memset(to + right * pixel, zero, static_cast<std::size_t>((s.in_w - right) * pixel));
  }
}

// The sums of the channels of `count` pixels of kBytes each, in `rows` rows and `blocks` blocks of them; `last_mask`
// has a 1 for each channel of the last block.
template <int kBytes>
void sum_pixels(const ConvInt8Args& args, const std::uint8_t* x, std::int64_t count, const std::uint8_t* last_mask,
                std::int32_t* to) {
  constexpr int kPixels = simd::kVectorBytes / kBytes;
  const ConvShape& s = args.conv.shape;
  const std::int64_t row = s.dilation_h * s.in_w * kBytes, map = s.in_h * s.in_w * kBytes;
  const std::int64_t blocks = args.conv.pack.blocks;
  std::int64_t p = 0;
  for (; p + kPixels <= count; p += kPixels) {
    simd::VecInt sums = {};
    for (std::int64_t b = 0; b < blocks; ++b) {
      const simd::VecInt ones = b + 1 < blocks ? 0x01010101 - simd::VecInt{} : simd::load_byte_quads(last_mask);
      for (std::int64_t r = 0; r < s.kernel_h; ++r)
        sums = simd::dot_bytes<true>(simd::load_byte_quads(x + b * map + r * row + p * kBytes), ones, sums);
    }
    alignas(64) std::int32_t quads[simd::kLanes];
    simd::store_ints(quads, sums);
    for (int i = 0; i < kPixels; ++i) {
      to[p + i] = 0;
      for (int q = 0; q < kBytes / 4; ++q) to[p + i] += quads[i * (kBytes / 4) + q];
    }
  }
  for (; p < count; ++p) {
    to[p] = 0;
    for (std::int64_t b = 0; b < blocks; ++b)
      for (std::int64_t r = 0; r < s.kernel_h; ++r)
        for (int i = 0; i < kBytes; ++i)
          if (b + 1 < blocks || last_mask[i] != 0) to[p] += x[b * map + r * row + p * kBytes + i];
  }
}

// The sums of x in the windows of all outputs. Split over rows of outputs.
void conv_sums_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvInt8Args& args = *static_cast<const ConvInt8Args*>(raw_args);
  const ConvShape& s = args.conv.shape;
  const std::int64_t groups = args.conv.pack.groups, width = args.conv.x_pixel;
  const std::uint8_t* x = static_cast<const std::uint8_t*>(buffers[args.conv.x_at]);
  std::int32_t* sums = static_cast<std::int32_t*>(buffers[args.sums_at]);
  std::int32_t* columns = static_cast<std::int32_t*>(context.scratch);
  const std::int64_t valid = args.is_plain ? args.plain_channels : args.conv.pack.last_depth;
  std::uint8_t mask[simd::kVectorBytes < 16 ? 16 : simd::kVectorBytes];
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(sizeof mask); ++i) mask[i] = i % width < valid;
  const WorkRange range = split_work(s.batch * groups * s.out_h, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t map = item / s.out_h, oh = item % s.out_h;
    const std::uint8_t* from =
        x + map / groups * args.conv.x_batch + map % groups * args.conv.x_group + oh * s.stride_h * s.in_w * width;
    (width == 4 ? sum_pixels<4> : sum_pixels<16>)(args, from, s.in_w, mask, columns);
    std::int32_t* to = sums + item * s.out_w;
    for (std::int64_t ow = 0; ow < s.out_w; ++ow) {
      std::int32_t sum = 0;
      for (std::int64_t c = 0; c < s.kernel_w; ++c) sum += columns[ow * s.stride_w + c * s.dilation_w];
      to[ow] = sum;
    }
  }
}

}  // namespace

extern const KernelEntry conv_int8_kernels[] = {{"conv_blocked_int8", conv_blocked_int8, &tile_int8_traits},
                                                {"conv_planar_int8", conv_planar_int8, &tile_int8_traits},
                                                {"conv_copy_int8", conv_copy_int8, nullptr},
                                                {"conv_sums_int8", conv_sums_int8, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
