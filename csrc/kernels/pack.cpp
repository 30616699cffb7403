// pack_tiles_f32, pack_tiles_bf16 (from f32), pack_tiles_int8: see pack.hpp. pack_amx_bf16 (from f32), pack_amx_int8:
// see pack_amx.hpp. Operands: source, packed, which must not overlap. Split over tiles.
#include "kernels/pack_amx.hpp"
#include "simd/bf16.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// A type of weights: `kAdjacent` as PackArgs::adjacent.
struct PackF32 {
  using Source = float;
  using Packed = float;
  static constexpr int kAdjacent = 1;
  static ENGINE_ALWAYS_INLINE float convert(float value) { return value; }
};
struct PackBf16 {
  using Source = float;
  using Packed = Bf16;
  static constexpr int kAdjacent = 2;
  static ENGINE_ALWAYS_INLINE Bf16 convert(float value) { return to_bf16(value); }
};
struct PackInt8 {
  using Source = std::int8_t;
  using Packed = std::int8_t;
  static constexpr int kAdjacent = 4;
  static ENGINE_ALWAYS_INLINE std::int8_t convert(std::int8_t value) { return value; }
};

// The first `depth` of adjacent values of each channel, as far as the channels go; the others are zero.
template <class Type>
ENGINE_INLINE void pack_channels(const typename Type::Source* from, std::int64_t channel_stride,
                                 std::int64_t depth_stride, int depth, int channels, int width,
                                 typename Type::Packed* to) {
  constexpr int kAdjacent = Type::kAdjacent;
  if (depth >= kAdjacent) {  // without a condition for each value, compilers emit shuffles
    for (int i = 0; i < channels; ++i)
      for (int j = 0; j < kAdjacent; ++j)
        to[i * kAdjacent + j] = Type::convert(from[i * channel_stride + j * depth_stride]);
  } else {
    for (int i = 0; i < channels; ++i)
      for (int j = 0; j < kAdjacent; ++j)
        to[i * kAdjacent + j] =
            j < depth ? Type::convert(from[i * channel_stride + j * depth_stride]) : typename Type::Packed{};
  }
  for (int i = channels * kAdjacent; i < width * kAdjacent; ++i) to[i] = typename Type::Packed{};
}

template <class Type>
void pack(const void* raw_args, void* const* buffers, const KernelContext& context) {
  constexpr int kAdjacent = Type::kAdjacent;
  const PackArgs& args = *static_cast<const PackArgs*>(raw_args);
  const auto* source = static_cast<const typename Type::Source*>(buffers[0]) + args.source_offset;
  auto* packed = static_cast<typename Type::Packed*>(buffers[1]) + args.packed_offset;
  const std::int64_t tiles = pack_tiles(args), reduction = pack_reduction(args), group_words = pack_group_words(args);
  const WorkRange range = split_work(args.groups * tiles, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t group = item / tiles, tile = item % tiles, first = tile * args.tile_channels;
    const int width = tile == tiles - 1 ? args.tail_channels : args.tile_channels;
    const int channels = static_cast<int>(min64(args.channels - first, width));
    auto* to = packed + (group * group_words + first * reduction) * kAdjacent;
    for (int b = 0; b < args.blocks; ++b) {
      const int depth = b == args.blocks - 1 ? args.last_depth : args.depth;
      for (int r = 0; r < args.rows; ++r)
        for (int c = 0; c < args.cols; ++c) {
          const auto* tap = source + group * args.group_stride + first * args.channel_stride + b * args.block_stride +
                            r * args.row_stride + c * args.col_stride;
          for (int d = 0; d < depth; d += kAdjacent, to += width * kAdjacent) {
            const auto* from = tap + d * args.depth_stride;
            if (args.channel_stride == 1)
              pack_channels<Type>(from, 1, args.depth_stride, depth - d, channels, width, to);
            else
              pack_channels<Type>(from, args.channel_stride, args.depth_stride, depth - d, channels, width, to);
          }
        }
    }
  }
}

template <class Type>
void pack_amx(const void* raw_args, void* const* buffers, const KernelContext& context) {
  constexpr int kAdjacent = Type::kAdjacent;
  const PackArgs& args = *static_cast<const PackArgs*>(raw_args);
  const auto* source = static_cast<const typename Type::Source*>(buffers[0]) + args.source_offset;
  auto* packed = static_cast<typename Type::Packed*>(buffers[1]) + args.packed_offset;
  const std::int64_t tiles = pack_tiles(args);
  const std::int64_t tile_size = std::int64_t{args.blocks} * args.rows * args.cols * args.depth * args.tile_channels;
  const WorkRange range = split_work(tiles, context.worker, context.workers);
  for (std::int64_t tile = range.begin; tile < range.end; ++tile) {
    auto* to = packed + tile * tile_size;
    for (int b = 0; b < args.blocks; ++b)
      for (int r = 0; r < args.rows; ++r)
        for (int c = 0; c < args.cols; ++c)
          for (int half = 0; half < 2; ++half) {
            const std::int64_t channel = tile * args.tile_channels + half * 16;
            const int channels = static_cast<int>(max64(0, min64(args.channels - channel, 16)));
            const int depth = b == args.blocks - 1 ? args.last_depth : args.depth;
            const auto* tap = source + channel * args.channel_stride + b * args.block_stride + r * args.row_stride +
                              c * args.col_stride;
            for (int d = 0; d < args.depth; d += kAdjacent, to += 16 * kAdjacent)
              pack_channels<Type>(tap + d * args.depth_stride, args.channel_stride, args.depth_stride, depth - d,
                                  d < depth ? channels : 0, 16, to);
          }
  }
}

}  // namespace

extern const KernelEntry pack_kernels[] = {
    {"pack_tiles_f32", pack<PackF32>, nullptr},     {"pack_tiles_bf16", pack<PackBf16>, nullptr},
    {"pack_tiles_int8", pack<PackInt8>, nullptr},   {"pack_amx_bf16", pack_amx<PackBf16>, nullptr},
    {"pack_amx_int8", pack_amx<PackInt8>, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
