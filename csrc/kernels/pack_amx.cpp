// pack_amx_bf16 (from f32) and pack_amx_int8: see pack_amx.hpp. Operands: source, packed, which must not overlap. Split
// over tiles.
#include "kernels/pack_amx.hpp"

#include "simd/bf16.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

struct FromFloat {
  using Source = float;
  using Packed = Bf16;
  static constexpr int kAdjacent = 2;
  static ENGINE_ALWAYS_INLINE Bf16 convert(float value) { return to_bf16(value); }
};
struct FromByte {
  using Source = std::int8_t;
  using Packed = std::int8_t;
  static constexpr int kAdjacent = 4;
  static ENGINE_ALWAYS_INLINE std::int8_t convert(std::int8_t value) { return value; }
};

// Sixteen channels of a tap, `channels` and `depth` of them present.
template <class Type>
ENGINE_INLINE void pack_tile(const typename Type::Source* tap, const PackArgs& args, std::int64_t channels,
                             std::int64_t depth, typename Type::Packed* to) {
  for (int d = 0; d < args.depth; d += Type::kAdjacent)
    for (int c = 0; c < 16; ++c)
      for (int i = d; i < d + Type::kAdjacent; ++i)
        *to++ = c < channels && i < depth ? Type::convert(tap[c * args.channel_stride + i * args.depth_stride])
                                          : typename Type::Packed{};
}

template <class Type>
ENGINE_INLINE void pack(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PackArgs& args = *static_cast<const PackArgs*>(raw_args);
  const auto* source = static_cast<const typename Type::Source*>(buffers[0]) + args.source_offset;
  auto* packed = static_cast<typename Type::Packed*>(buffers[1]) + args.packed_offset;
  const std::int64_t tiles = (args.channels + args.tile_channels - 1) / args.tile_channels;
  const std::int64_t tile_size = std::int64_t{args.blocks} * args.rows * args.cols * args.depth * args.tile_channels;
  const WorkRange range = split_work(tiles, context.worker, context.workers);
  for (std::int64_t tile = range.begin; tile < range.end; ++tile) {
    auto* to = packed + tile * tile_size;
    for (int b = 0; b < args.blocks; ++b)
      for (int r = 0; r < args.rows; ++r)
        for (int c = 0; c < args.cols; ++c)
          for (int half = 0; half < 2; ++half, to += 16 * args.depth) {
            const std::int64_t channel = tile * args.tile_channels + half * 16;
            const auto* tap = source + channel * args.channel_stride + b * args.block_stride + r * args.row_stride +
                              c * args.col_stride;
            pack_tile<Type>(tap, args, args.channels - channel, b == args.blocks - 1 ? args.last_depth : args.depth,
                            to);
          }
  }
}

void pack_amx_bf16(const void* args, void* const* buffers, const KernelContext& context) {
  pack<FromFloat>(args, buffers, context);
}

void pack_amx_int8(const void* args, void* const* buffers, const KernelContext& context) {
  pack<FromByte>(args, buffers, context);
}

}  // namespace

extern const KernelEntry pack_amx_kernels[] = {
    {"pack_amx_bf16", pack_amx_bf16, nullptr}, {"pack_amx_int8", pack_amx_int8, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
