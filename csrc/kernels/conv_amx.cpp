// conv_amx_bf16, conv_amx_int8, and the phases before them, conv_copy_amx_bf16 and conv_copy_amx_int8: see
// conv_amx.hpp. x must not overlap y; the residual may be y. Element alignment.
#include "kernels/conv_amx.hpp"

#include <cstring>

#include "kernels/tile_product.hpp"
#include "kernels/tile_writer.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kPlainChannels = 4;

// A row of the copy: of which row of x, and the first column that it has.
struct CopiedRow {
  std::int64_t y, x;
};

// The columns of the copy that are in x, for a row that is in x.
WorkRange inner_columns(const ConvAmxArgs& args, std::int64_t x, std::int64_t width, std::int64_t stride) {
  const std::int64_t in_w = args.shape.in_w;
  const std::int64_t begin = x >= 0 ? 0 : min64(width, (-x + stride - 1) / stride);
  return {begin, x >= in_w ? begin : max64(begin, min64(width, (in_w - 1 - x) / stride + 1))};
}

// kParts adjacent blocks of 16 channels, kBytes of each, of `width` pixels.
template <int kParts, int kBytes>
void copy_pixels(const char* from, std::int64_t block, std::int64_t step, std::int64_t width, char* to) {
  for (std::int64_t j = 0; j < width; ++j, from += step, to += tiles::kRowBytes)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) std::memcpy(to + part * kBytes, from + part * block, kBytes);
}

// A row of blocks of 64 bytes of channels. Lanes beyond the channels become zero, since in a map they may be NaN.
template <int kBytes>
void copy_channels(const ConvAmxArgs& args, const char* image, std::int64_t block, const CopiedRow& from, char* to) {
  constexpr std::int64_t kBlocks = tiles::kRowBytes / kBytes;
  const ConvShape& s = args.shape;
  const std::int64_t width = args.virtual_w, left = s.in_channels - block * kBlocks * 16;
  const WorkRange inside =
      from.y >= 0 && from.y < s.in_h ? inner_columns(args, from.x, width, s.stride_w) : WorkRange{0, 0};
  std::memset(to, args.padding, static_cast<std::size_t>(inside.begin * tiles::kRowBytes));
  std::memset(to + inside.end * tiles::kRowBytes, args.padding,
              static_cast<std::size_t>((width - inside.end) * tiles::kRowBytes));
  const std::int64_t plane = s.in_h * s.in_w * kBytes, step = s.stride_w * kBytes, count = inside.end - inside.begin;
  if (count == 0) return;
  const char* row = image + block * kBlocks * plane + (from.y * s.in_w + from.x + inside.begin * s.stride_w) * kBytes;
  to += inside.begin * tiles::kRowBytes;
  if (left >= kBlocks * 16) return copy_pixels<kBlocks, kBytes>(row, plane, step, count, to);
  const std::int64_t whole = left / 16, rest = left % 16 * (kBytes / 16);
  for (std::int64_t j = 0; j < count; ++j, to += tiles::kRowBytes) {
    std::memset(to, 0, tiles::kRowBytes);
    for (std::int64_t part = 0; part < whole; ++part)
      std::memcpy(to + part * kBytes, row + part * plane + j * step, kBytes);
    std::memcpy(to + whole * kBytes, row + whole * plane + j * step, static_cast<std::size_t>(rest));
  }
}

// A plain row of u8: four values for each pixel.
void copy_plain(const ConvAmxArgs& args, const std::uint8_t* image, const CopiedRow& from, std::uint8_t* to) {
  const ConvShape& s = args.shape;
  const std::int64_t pixels = args.row / kPlainChannels;
  const WorkRange inside = from.y >= 0 && from.y < s.in_h ? inner_columns(args, from.x, pixels, 1) : WorkRange{0, 0};
  std::memset(to, args.padding, static_cast<std::size_t>(inside.begin * kPlainChannels));
  std::memset(to + inside.end * kPlainChannels, args.padding,
              static_cast<std::size_t>((pixels - inside.end) * kPlainChannels));
  const std::uint8_t* planes[kPlainChannels];
  // Weights beyond the channels are zero: any value will do.
  for (std::int64_t c = 0; c < kPlainChannels; ++c)
    planes[c] = image + (min64(c, s.in_channels - 1) * s.in_h + from.y) * s.in_w + from.x;
  const std::uint8_t *p0 = planes[0], *p1 = planes[1], *p2 = planes[2], *p3 = planes[3];
  for (std::int64_t j = inside.begin; j < inside.end; ++j) {
    const std::uint32_t pixel =
        std::uint32_t{p0[j]} | std::uint32_t{p1[j]} << 8 | std::uint32_t{p2[j]} << 16 | std::uint32_t{p3[j]} << 24;
    std::memcpy(to + j * kPlainChannels, &pixel, sizeof pixel);
  }
}
// A plain row of f32: four values of bf16 for each pixel, zeros beyond the channels.
void copy_plain(const ConvAmxArgs& args, const float* image, const CopiedRow& from, Bf16* to) {
  const ConvShape& s = args.shape;
  const std::int64_t pixels = args.row / (kPlainChannels * 2);
  std::memset(to, 0, static_cast<std::size_t>(args.row));
  if (from.y < 0 || from.y >= s.in_h) return;
  const WorkRange inside = inner_columns(args, from.x, pixels, 1);
  Bf16 values[kPlainChannels][simd::kLanes] = {};
  for (std::int64_t j = inside.begin; j < inside.end; j += simd::kLanes) {
    const std::int64_t count = min64(simd::kLanes, inside.end - j);
    for (std::int64_t c = 0; c < s.in_channels; ++c) {
      const float* at = image + (c * s.in_h + from.y) * s.in_w + from.x + j;
      if (count == simd::kLanes)
        simd::store(values[c], simd::load(at));
      else
        for (std::int64_t i = 0; i < count; ++i) values[c][i] = to_bf16(at[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t pixel = std::uint64_t{values[0][i].bits} | std::uint64_t{values[1][i].bits} << 16 |
                                  std::uint64_t{values[2][i].bits} << 32 | std::uint64_t{values[3][i].bits} << 48;
      std::memcpy(to + (j + i) * kPlainChannels, &pixel, sizeof pixel);
    }
  }
}

std::int64_t rows_of_image(const ConvAmxArgs& args) {
  return args.phases_h * args.phases_w * args.blocks * args.rows;
}

// Weights up to this size stay in the L2 cache of each worker.
constexpr std::int64_t kCachedWeights = 1 << 20;

// The pairs of tiles whose pixels stay in L1 (or, without taps, in L2) while the channels pass; 0 if the weights do not
// stay in L2, and so are read once.
std::int64_t pairs_of_block(const ConvAmxArgs& args, std::int64_t weights) {
  if (weights > kCachedWeights) return 0;
  const std::int64_t pair_bytes = args.blocks * kBlockRows * tiles::kRowBytes;
  const std::int64_t bytes = args.shape.kernel_h * args.shape.kernel_w == 1 ? 24 * 1024 : 48 * 1024;
  return max64(1, bytes / pair_bytes);
}

// The product of `out_h` rows of the result, without A.
TileProduct product_of(const ConvAmxArgs& args, std::int64_t out_h, const void* weights) {
  const ConvShape& s = args.shape;
  TileProduct product = {};
  product.a_row = args.pixel;
  product.b = static_cast<const char*>(weights) + args.w_offset;
  product.rows = (out_h - 1) * args.virtual_w + s.out_w;
  product.groups = (s.out_channels + kGroupColumns - 1) / kGroupColumns;
  product.steps = conv_amx_steps(args);
  product.a_bytes = rows_of_image(args) * args.row;
  product.block = pairs_of_block(args, product.groups * product.steps * kStepBytes);
  return product;
}

// Rows of the copy of an image, beginning `first` rows of the result below its top.
template <bool kIsBytes>
void copy_rows(const ConvAmxArgs& args, const char* image, std::int64_t first, const WorkRange& items,
               const FirstWeights& weights, char* copy) {
  constexpr int kBytes = kIsBytes ? 16 : 32;
  const ConvShape& s = args.shape;
  for (std::int64_t item = items.begin; item < items.end; ++item) {
    weights.ask(item - items.begin, items.end - items.begin);
    const std::int64_t i = item % args.rows, block = item / args.rows % args.blocks;
    const std::int64_t phase = item / (args.rows * args.blocks);
    const CopiedRow from = {(first + i) * s.stride_h + phase / args.phases_w - s.pad_top,
                            phase % args.phases_w - s.pad_left};
    char* to = copy + item * args.row;
    if (!args.is_plain)
      copy_channels<kBytes>(args, image, block, from, to);
    else if constexpr (kIsBytes)
      copy_plain(args, reinterpret_cast<const std::uint8_t*>(image), from, reinterpret_cast<std::uint8_t*>(to));
    else
      copy_plain(args, reinterpret_cast<const float*>(image), from, reinterpret_cast<Bf16*>(to));
  }
}

const char* image_at(const ConvAmxArgs& args, void* const* buffers, std::int64_t n) {
  return static_cast<const char*>(buffers[0]) + n * args.x_batch * args.value_bytes;
}

// Split over the rows of the copies of all images.
template <bool kIsBytes>
void copy_maps(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvAmxArgs& args = *static_cast<const ConvAmxArgs*>(raw_args);
  const std::int64_t rows = rows_of_image(args);
  const WorkRange range = split_work(args.shape.batch * rows, context.worker, context.workers);
  FirstWeights weights(product_of(args, args.shape.out_h, buffers[1]), context);
  for (std::int64_t begin = range.begin; begin < range.end; weights.bytes = 0) {
    const std::int64_t n = begin / rows, end = min64(range.end, (n + 1) * rows);
    copy_rows<kIsBytes>(args, image_at(args, buffers, n), 0, {begin - n * rows, end - n * rows}, weights,
                        static_cast<char*>(buffers[args.copy_at]) + n * rows * args.row);
    begin = end;
  }
}

void conv_copy_amx_bf16(const void* args, void* const* buffers, const KernelContext& context) {
  copy_maps<false>(args, buffers, context);
}
void conv_copy_amx_int8(const void* args, void* const* buffers, const KernelContext& context) {
  copy_maps<true>(args, buffers, context);
}

// The pixel of each row of a product of `out_h` rows of pixels; the results at the ends of rows are dropped.
void fill_places(const ConvAmxArgs& args, std::int64_t out_h, std::int32_t* places) {
  const ConvShape& s = args.shape;
  std::int32_t* const end = places + conv_amx_rows(args, out_h);
  for (std::int64_t row = 0; row < out_h; ++row) {
    std::int32_t pixel = static_cast<std::int32_t>(row * args.y_row);
    const std::int32_t step = static_cast<std::int32_t>(args.y_pixel);
    for (std::int64_t x = 0; x < s.out_w; ++x, pixel += step) *places++ = pixel;
    if (row + 1 < out_h)
      for (std::int64_t x = s.out_w; x < args.virtual_w; ++x) *places++ = -1;
  }
  while (places < end) *places++ = -1;
}

// The offset of each step of depth in the copy of an image.
void fill_offsets(const ConvAmxArgs& args, std::int64_t* offsets) {
  const ConvShape& s = args.shape;
  const std::int64_t block = args.rows * args.row, columns = args.is_plain ? 1 : s.kernel_w;
  for (std::int64_t b = 0; b < args.blocks; ++b)
    for (std::int64_t r = 0; r < s.kernel_h; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t y = r * s.dilation_h, x = c * s.dilation_w;
        const std::int64_t phase = y % s.stride_h * args.phases_w + (args.is_plain ? 0 : x % s.stride_w);
        *offsets++ = (phase * args.blocks + b) * block + y / s.stride_h * args.row + x / s.stride_w * args.pixel;
      }
}

// The content of a worker's scratch.
struct ConvScratch {
  std::int64_t* offsets;  // of steps
  std::int32_t* places;   // of the rows of the product of a strip or an image
  char* strip;            // the copy of a strip
};

ConvScratch scratch_of(const ConvAmxArgs& args, void* scratch) {
  char* at = static_cast<char*>(scratch);
  ConvScratch parts = {};
  parts.strip = at;
  at += args.strip_bytes;
  parts.offsets = reinterpret_cast<std::int64_t*>(at);
  at += conv_amx_steps(args) * static_cast<std::int64_t>(sizeof(std::int64_t));
  parts.places = reinterpret_cast<std::int32_t*>(at);
  return parts;
}

// Multiplies the copies of images, or copies and multiplies strips of the worker's rows. Calls make_writer for an image
// and its first row.
template <class Type, class MakeWriter>
ENGINE_INLINE void convolve(const ConvAmxArgs& args, void* const* buffers, const KernelContext& context,
                            const MakeWriter& make_writer) {
  const ConvShape& s = args.shape;
  const ConvScratch scratch = scratch_of(args, context.scratch);
  fill_offsets(args, scratch.offsets);
  const bool is_strip = args.strip_bytes > 0;
  const auto multiply = [&](const KernelContext& of_product, const char* a, std::int64_t n, std::int64_t row,
                            std::int64_t out_h) {
    TileProduct product = product_of(args, out_h, buffers[1]);
    product.a = a;
    auto writer = make_writer(n, row);
    writer.places = {scratch.places, product.rows, args.y_pixel != 1 || args.y_row != s.out_w};
    writer.prepare();
    // Taps read the same pixels again, from L1.
    if (s.kernel_h * s.kernel_w == 1)
      multiply_tiles<Type, true>(product, ListedSteps{scratch.offsets}, writer, of_product);
    else
      multiply_tiles<Type, false>(product, ListedSteps{scratch.offsets}, writer, of_product);
  };
  if (!is_strip) {
    fill_places(args, s.out_h, scratch.places);
    for (std::int64_t n = 0; n < s.batch; ++n) {
      const char* copy = static_cast<const char*>(buffers[args.copy_at]) + n * rows_of_image(args) * args.row;
      multiply(context, copy, n, 0, s.out_h);
    }
    return;
  }
  KernelContext alone = context;
  alone.worker = 0;
  alone.workers = 1;
  FirstWeights weights(product_of(args, args.strip_h, buffers[1]), alone);
  const WorkRange range = split_work(s.batch * s.out_h, context.worker, context.workers);
  std::int64_t filled = 0;
  for (std::int64_t begin = range.begin; begin < range.end; weights.bytes = 0) {
    const std::int64_t n = begin / s.out_h, row = begin - n * s.out_h;
    const std::int64_t count = min64(min64(range.end - begin, s.out_h - row), args.strip_h);
    copy_rows<sizeof(typename Type::Value) == 1>(args, image_at(args, buffers, n), row, {0, rows_of_image(args)},
                                                 weights, scratch.strip);
    if (filled != count) fill_places(args, filled = count, scratch.places);
    multiply(alone, scratch.strip, n, row, count);
    begin += count;
  }
}

// The pixels of a map of results from a row of the image that begins at element `image`.
template <class Byte>
ByteMatrix<Byte> map_rows(const ConvAmxArgs& args, void* map, std::int64_t image, std::int64_t row,
                          std::int64_t bytes) {
  const std::int64_t first = image + (args.y_first + row * args.y_row) * 16;
  return {static_cast<Byte*>(map) + first * bytes, 16 * bytes, args.y_plane * 16 * bytes};
}

void conv_amx_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvAmxArgs& args = *static_cast<const ConvAmxArgs*>(raw_args);
  const ConvShape& s = args.shape;
  if (s.batch * s.out_h * s.out_w == 0) return;
  MixedWriter made = {};
  made.epilogue = &args.epilogue;
  int operand = 2;
  if (args.operands.has_bias) made.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) made.scale = static_cast<const float*>(buffers[operand++]);
  made.columns = s.out_channels;
  made.is_whole = true;
  made.y_bytes = args.y_bytes;
  made.residual_bytes = args.residual_bytes;
  convolve<Bf16Tiles>(args, buffers, context, [&](std::int64_t n, std::int64_t row) {
    MixedWriter writer = made;
    if (args.operands.has_residual)
      writer.residual = map_rows<const char>(args, buffers[operand], n * args.residual_batch, row, args.residual_bytes);
    writer.y = map_rows<char>(args, buffers[args.y_at], n * args.y_batch, row, args.y_bytes);
    return writer;
  });
}

void conv_amx_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvAmxArgs& args = *static_cast<const ConvAmxArgs*>(raw_args);
  const ConvShape& s = args.shape;
  if (s.batch * s.out_h * s.out_w == 0) return;
  IntegerWriter made = {};
  made.requantize = &args.requantize;
  made.starts = buffers[2];
  made.depth = s.in_channels * s.kernel_h * s.kernel_w;
  made.scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  if (args.operands.has_bias) made.bias = static_cast<const float*>(buffers[operand++]);
  made.columns = s.out_channels;
  made.is_whole = true;
  convolve<Int8Tiles>(args, buffers, context, [&](std::int64_t n, std::int64_t row) {
    IntegerWriter writer = made;
    const std::int64_t residual_bytes = element_bytes_of(args.requantize.residual);
    if (args.operands.has_residual)
      writer.residual = map_rows<const char>(args, buffers[operand], n * args.residual_batch, row, residual_bytes);
    writer.y = map_rows<char>(args, buffers[args.y_at], n * args.y_batch, row, element_bytes_of(args.requantize.y));
    return writer;
  });
}

}  // namespace

extern const KernelEntry conv_amx_kernels[] = {{"conv_amx_bf16", conv_amx_bf16, nullptr},
                                               {"conv_copy_amx_bf16", conv_copy_amx_bf16, nullptr},
                                               {"conv_amx_int8", conv_amx_int8, nullptr},
                                               {"conv_copy_amx_int8", conv_copy_amx_int8, nullptr},
                                               {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
