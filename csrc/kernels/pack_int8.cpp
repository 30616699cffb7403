// pack_tiles_int8: see pack_int8.hpp. Operands: source (i8), packed, which must not overlap. Split over tiles.
#include "kernels/pack_int8.hpp"

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void pack_tiles_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PackArgs& args = *static_cast<const PackArgs*>(raw_args);
  const std::int8_t* source = static_cast<const std::int8_t*>(buffers[0]) + args.source_offset;
  std::int8_t* packed = static_cast<std::int8_t*>(buffers[1]) + args.packed_offset;
  const std::int64_t tiles = (args.channels + args.tile_channels - 1) / args.tile_channels;
  const std::int64_t full = (args.depth + 3) / 4 * 4, last = (args.last_depth + 3) / 4 * 4;
  const std::int64_t reduction = (full * (args.blocks - 1) + last) * args.rows * args.cols;
  const std::int64_t group_size = ((tiles - 1) * args.tile_channels + args.tail_channels) * reduction;
  const WorkRange range = split_work(args.groups * tiles, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t group = item / tiles, tile = item % tiles;
    const int width = tile == tiles - 1 ? args.tail_channels : args.tile_channels;
    const std::int64_t first = tile * args.tile_channels;
    std::int8_t* to = packed + group * group_size + first * reduction;
    for (int b = 0; b < args.blocks; ++b) {
      const int depth = b == args.blocks - 1 ? args.last_depth : args.depth;
      for (int r = 0; r < args.rows; ++r)
        for (int c = 0; c < args.cols; ++c) {
          const std::int8_t* tap = source + group * args.group_stride + first * args.channel_stride +
                                   b * args.block_stride + r * args.row_stride + c * args.col_stride;
          for (int d = 0; d < depth; d += 4)
            for (int i = 0; i < width; ++i)
              for (int j = 0; j < 4; ++j) {
                const bool is_weight = first + i < args.channels && d + j < depth;
                *to++ = is_weight ? tap[i * args.channel_stride + (d + j) * args.depth_stride] : std::int8_t{0};
              }
        }
    }
  }
}

}  // namespace

extern const KernelEntry pack_int8_kernels[] = {{"pack_tiles_int8", pack_tiles_int8, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
