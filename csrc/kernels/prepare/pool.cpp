// Plan-time half of pooling.
#include "kernels/pool.hpp"

namespace engine {

PoolArgs make_pool_args(const ConvShape& shape, bool counts_padding, std::int64_t pad_bottom, std::int64_t pad_right) {
  PoolArgs args = {};
  args.shape = shape;
  args.counts_padding = counts_padding;
  args.pad_bottom = pad_bottom;
  args.pad_right = pad_right;
  const std::int64_t blocks = (shape.in_channels + 15) / 16;
  args.x_batch = blocks * 16 * shape.in_h * shape.in_w;
  args.y_batch = blocks * 16 * shape.out_h * shape.out_w;
  return args;
}

}  // namespace engine
