// pack_tiles_bf16: see pack_bf16.hpp. Operands: source (f32), packed (bf16), which must not overlap. Split over tiles.
#include "kernels/pack_bf16.hpp"

#include "simd/bf16.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void pack_tiles_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PackArgs& args = *static_cast<const PackArgs*>(raw_args);
  const float* source = static_cast<const float*>(buffers[0]) + args.source_offset;
  Bf16* packed = static_cast<Bf16*>(buffers[1]) + args.packed_offset;
  const std::int64_t tiles = (args.channels + args.tile_channels - 1) / args.tile_channels;
  const std::int64_t full = (args.depth + 1) / 2 * 2, last = (args.last_depth + 1) / 2 * 2;
  const std::int64_t reduction = (full * (args.blocks - 1) + last) * args.rows * args.cols;
  const std::int64_t group_size = ((tiles - 1) * args.tile_channels + args.tail_channels) * reduction;
  const WorkRange range = split_work(args.groups * tiles, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t group = item / tiles, tile = item % tiles;
    const int width = tile == tiles - 1 ? args.tail_channels : args.tile_channels;
    const std::int64_t first = tile * args.tile_channels;
    const int valid = static_cast<int>(args.channels - first < width ? args.channels - first : width);
    Bf16* to = packed + group * group_size + first * reduction;
    for (int b = 0; b < args.blocks; ++b) {
      const int depth = b == args.blocks - 1 ? args.last_depth : args.depth;
      for (int r = 0; r < args.rows; ++r)
        for (int c = 0; c < args.cols; ++c) {
          const float* tap = source + group * args.group_stride + first * args.channel_stride + b * args.block_stride +
                             r * args.row_stride + c * args.col_stride;
          for (int d = 0; d < depth; d += 2, to += width * 2) {
            const float* from = tap + d * args.depth_stride;
            const bool is_pair = d + 1 < depth;
            for (int i = 0; i < valid; ++i) {
              to[2 * i] = to_bf16(from[i * args.channel_stride]);
              to[2 * i + 1] = is_pair ? to_bf16(from[i * args.channel_stride + args.depth_stride]) : Bf16{0};
            }
            for (int i = 2 * valid; i < 2 * width; ++i) to[i] = Bf16{0};
          }
        }
    }
  }
}

}  // namespace

extern const KernelEntry pack_bf16_kernels[] = {{"pack_tiles_bf16", pack_tiles_bf16, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
