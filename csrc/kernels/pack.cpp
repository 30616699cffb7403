// pack_tiles_f32: see pack.hpp. Operands: source, packed, which must not overlap. Split over tiles.
#include "kernels/pack.hpp"

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void pack_tiles_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PackArgs& args = *static_cast<const PackArgs*>(raw_args);
  const float* source = static_cast<const float*>(buffers[0]) + args.source_offset;
  float* packed = static_cast<float*>(buffers[1]) + args.packed_offset;
  const std::int64_t tiles = (args.channels + args.tile_channels - 1) / args.tile_channels;
  const std::int64_t reduction =
      (std::int64_t{args.depth} * (args.blocks - 1) + args.last_depth) * args.rows * args.cols;
  const std::int64_t group_floats = ((tiles - 1) * args.tile_channels + args.tail_channels) * reduction;
  const WorkRange range = split_work(args.groups * tiles, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t group = item / tiles, tile = item % tiles;
    const int width = tile == tiles - 1 ? args.tail_channels : args.tile_channels;
    const std::int64_t first = tile * args.tile_channels;
    const int valid = static_cast<int>(args.channels - first < width ? args.channels - first : width);
    float* to = packed + group * group_floats + first * reduction;
    for (int b = 0; b < args.blocks; ++b) {
      const int depth = b == args.blocks - 1 ? args.last_depth : args.depth;
      for (int r = 0; r < args.rows; ++r)
        for (int c = 0; c < args.cols; ++c)
          for (int d = 0; d < depth; ++d) {
            const float* from = source + group * args.group_stride + first * args.channel_stride +
                                b * args.block_stride + r * args.row_stride + c * args.col_stride +
                                d * args.depth_stride;
            if (args.channel_stride == 1)
              for (int i = 0; i < valid; ++i) to[i] = from[i];
            else
              for (int i = 0; i < valid; ++i) to[i] = from[i * args.channel_stride];
            for (int i = valid; i < width; ++i) to[i] = 0.0f;
            to += width;
          }
    }
  }
}

}  // namespace

extern const KernelEntry pack_kernels[] = {{"pack_tiles_f32", pack_tiles_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
