// conv_amx_bf16, conv_amx_int8, and the phases before them, conv_copy_amx_bf16 and conv_copy_amx_int8: see
// conv_amx.hpp. x must not overlap y; the residual may be y. Element alignment.
#include "kernels/conv_amx.hpp"

#include <cstring>

#include "kernels/tile_product.hpp"
#include "kernels/tile_writer.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kPlainChannels = 4;

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
ENGINE_INLINE std::int64_t max64(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

// A row of the copy: of which row of x, and the first column that it has.
struct CopiedRow {
  std::int64_t y, x;
};

// Sixteen channels of a row, kBytes for all of them, at every 64 bytes. Lanes beyond `valid` become zero: those of a
// map may be NaN.
template <int kBytes>
void copy_channels(const ConvAmxArgs& args, const char* image, std::int64_t block, const CopiedRow& from, char* to) {
  const ConvShape& s = args.shape;
  const std::int64_t valid = s.in_channels - block * 16;
  char padding[kBytes];
  std::memset(padding, args.padding, sizeof padding);
  const bool is_inside = valid > 0 && from.y >= 0 && from.y < s.in_h;
  const std::int64_t width = args.virtual_w;
  const char* row = is_inside ? image + (block * s.in_h + from.y) * s.in_w * kBytes : nullptr;
  // The pixels from `first` to `last` are in x.
  const std::int64_t first = !is_inside    ? width
                             : from.x >= 0 ? 0
                                           : min64(width, (-from.x + s.stride_w - 1) / s.stride_w);
  const std::int64_t last =
      !is_inside || from.x >= s.in_w ? first : max64(first, min64(width, (s.in_w - 1 - from.x) / s.stride_w + 1));
  for (std::int64_t j = 0; j < first; ++j) std::memcpy(to + j * tiles::kRowBytes, padding, kBytes);
  for (std::int64_t j = first; j < last; ++j)
    std::memcpy(to + j * tiles::kRowBytes, row + (from.x + j * s.stride_w) * kBytes, kBytes);
  for (std::int64_t j = last; j < width; ++j) std::memcpy(to + j * tiles::kRowBytes, padding, kBytes);
  if (valid < 16 && is_inside)
    for (std::int64_t j = first; j < last; ++j)
      std::memset(to + j * tiles::kRowBytes + valid * (kBytes / 16), 0,
                  static_cast<std::size_t>((16 - valid) * (kBytes / 16)));
}

// A plain row: values of four channels for each pixel.
template <class Source, class Value>
void copy_plain(const ConvAmxArgs& args, const Source* image, const CopiedRow& from, Value* to) {
  const ConvShape& s = args.shape;
  const std::int64_t pixels = args.row / static_cast<std::int64_t>(kPlainChannels * sizeof(Value));
  for (std::int64_t j = 0; j < pixels; ++j)
    for (std::int64_t c = 0; c < kPlainChannels; ++c) {
      const std::int64_t x = from.x + j;
      const bool is_inside = c < s.in_channels && from.y >= 0 && from.y < s.in_h && x >= 0 && x < s.in_w;
      Value& value = to[j * kPlainChannels + c];
      if (!is_inside)
        std::memset(&value, args.padding, sizeof value);
      else if constexpr (sizeof(Value) == 2)
        value = to_bf16(image[(c * s.in_h + from.y) * s.in_w + x]);
      else
        value = image[(c * s.in_h + from.y) * s.in_w + x];
    }
}

// Split over the rows of the copy.
template <bool kIsBytes>
void copy_map(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvAmxArgs& args = *static_cast<const ConvAmxArgs*>(raw_args);
  const ConvShape& s = args.shape;
  char* copy = static_cast<char*>(buffers[args.copy_at]);
  const char* x = static_cast<const char*>(buffers[0]);
  const std::int64_t of_image = args.phases_h * args.phases_w * args.blocks * args.rows;
  const WorkRange range = split_work(s.batch * of_image, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t i = item % args.rows, block = item / args.rows % args.blocks;
    const std::int64_t phase = item / (args.rows * args.blocks) % (args.phases_h * args.phases_w);
    const char* image = x + item / of_image * args.x_batch * args.value_bytes;
    const CopiedRow from = {i * s.stride_h + phase / args.phases_w - s.pad_top, phase % args.phases_w - s.pad_left};
    char* to = copy + item * args.row;
    if (args.is_plain) {
      if constexpr (kIsBytes)
        copy_plain(args, reinterpret_cast<const std::uint8_t*>(image), from, reinterpret_cast<std::uint8_t*>(to));
      else
        copy_plain(args, reinterpret_cast<const float*>(image), from, reinterpret_cast<Bf16*>(to));
      continue;
    }
    constexpr int kBytes = kIsBytes ? 16 : 32, kBlocks = tiles::kRowBytes / kBytes;
    for (int part = 0; part < kBlocks; ++part)
      copy_channels<kBytes>(args, image, block * kBlocks + part, from, to + part * kBytes);
  }
}

void conv_copy_amx_bf16(const void* args, void* const* buffers, const KernelContext& context) {
  copy_map<false>(args, buffers, context);
}
void conv_copy_amx_int8(const void* args, void* const* buffers, const KernelContext& context) {
  copy_map<true>(args, buffers, context);
}

// The pixel of each row of the product, whose rows end with results that are dropped.
void fill_places(const ConvAmxArgs& args, std::int32_t* places) {
  const ConvShape& s = args.shape;
  std::int32_t* const end = places + conv_amx_rows(args);
  std::int32_t pixel = 0;
  for (std::int64_t row = 0; row < s.out_h; ++row) {
    for (std::int64_t x = 0; x < s.out_w; ++x) *places++ = pixel++;
    if (row + 1 < s.out_h)
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

// The pairs of tiles whose pixels stay in L1 (or, without taps, in L2) while the channels pass; 0 if the weights do not
// stay in L2, and so are read once.
std::int64_t pairs_of_block(const ConvAmxArgs& args, std::int64_t weights) {
  if (weights > kCachedTileWeights) return 0;
  const std::int64_t pair_bytes = args.blocks * kBlockRows * tiles::kRowBytes;
  const std::int64_t bytes = args.shape.kernel_h * args.shape.kernel_w == 1 ? 24 * 1024 : 48 * 1024;
  return max64(1, bytes / pair_bytes);
}

// Calls multiply for each image with its writer.
template <class Type, class MakeWriter>
ENGINE_INLINE void convolve(const ConvAmxArgs& args, void* const* buffers, const KernelContext& context,
                            const MakeWriter& make_writer) {
  const ConvShape& s = args.shape;
  std::int64_t* offsets = static_cast<std::int64_t*>(context.scratch);
  std::int32_t* places = reinterpret_cast<std::int32_t*>(offsets + conv_amx_steps(args));
  fill_offsets(args, offsets);
  fill_places(args, places);
  TileProduct product = {};
  product.a_row = args.pixel;
  product.b = static_cast<const char*>(buffers[1]);
  product.rows = (s.out_h - 1) * args.virtual_w + s.out_w;
  product.groups = (s.out_channels + kGroupColumns - 1) / kGroupColumns;
  product.steps = conv_amx_steps(args);
  product.block = pairs_of_block(args, product.groups * product.steps * kStepBytes);
  product.asks = product.block == 0;
  for (std::int64_t n = 0; n < s.batch; ++n) {
    product.a = static_cast<const char*>(buffers[args.copy_at]) + n * conv_amx_image_bytes(args);
    auto writer = make_writer(n);
    writer.places = {places, product.rows};
    writer.prepare();
    // Taps read the same pixels again, from L1.
    if (s.kernel_h * s.kernel_w == 1)
      multiply_tiles<Type, true>(product, ListedSteps{offsets}, writer, context);
    else
      multiply_tiles<Type, false>(product, ListedSteps{offsets}, writer, context);
  }
}

void conv_amx_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvAmxArgs& args = *static_cast<const ConvAmxArgs*>(raw_args);
  const ConvShape& s = args.shape;
  const std::int64_t plane = s.out_h * s.out_w * 16;
  if (s.batch * plane == 0) return;
  MixedWriter made = {};
  made.epilogue = &args.epilogue;
  int operand = 2;
  if (args.operands.has_bias) made.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) made.scale = static_cast<const float*>(buffers[operand++]);
  made.columns = s.out_channels;
  made.is_whole = true;
  convolve<Bf16Tiles>(args, buffers, context, [&](std::int64_t n) {
    MixedWriter writer = made;
    if (args.operands.has_residual) {
      const EitherPointer<const char> residual = {static_cast<const char*>(buffers[operand]), args.residual_bytes};
      writer.residual = {residual + n * args.residual_batch, 16, plane};
    }
    writer.y = {EitherPointer<char>{static_cast<char*>(buffers[args.y_at]), args.y_bytes} + n * args.y_batch, 16,
                plane};
    return writer;
  });
}

void conv_amx_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvAmxArgs& args = *static_cast<const ConvAmxArgs*>(raw_args);
  const ConvShape& s = args.shape;
  const std::int64_t plane = s.out_h * s.out_w * 16;
  if (s.batch * plane == 0) return;
  IntegerWriter made = {};
  made.requantize = &args.requantize;
  made.start = static_cast<const std::int32_t*>(buffers[2]);
  made.scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  if (args.operands.has_bias) made.bias = static_cast<const float*>(buffers[operand++]);
  made.columns = s.out_channels;
  made.is_whole = true;
  convolve<Int8Tiles>(args, buffers, context, [&](std::int64_t n) {
    IntegerWriter writer = made;
    if (args.operands.has_residual) {
      const SizedPointer<const char> residual = {static_cast<const char*>(buffers[operand]),
                                                 element_bytes_of(args.requantize.residual)};
      writer.residual = {residual + n * args.residual_batch, 16, plane};
    }
    const SizedPointer<char> y = {static_cast<char*>(buffers[args.y_at]), element_bytes_of(args.requantize.y)};
    writer.y = {y + n * args.y_batch, 16, plane};
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
