// gather, gather_elements, gather_nd, one_hot: see gather.hpp.
//
// Operands: data, indices, destination; for one_hot: indices, values (off, on), destination. Any alignment; they must
// not overlap. Split over rows of the destination.
#include "kernels/gather.hpp"

#include <cstring>

#include "kernels/index.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Copies a block of a fixed size, or of any size.
template <int kBytes>
ENGINE_INLINE void take_block(const char* from, char* to, std::int64_t bytes) {
  const std::size_t size = kBytes > 0 ? kBytes : static_cast<std::size_t>(bytes);
  if (from == nullptr)
    std::memset(to, 0, size);
  else
    std::memcpy(to, from, size);
}

template <int kBytes>
void gather_rows(const GatherArgs& args, void* const* buffers, const KernelContext& context) {
  const std::int64_t block = kBytes > 0 ? kBytes : args.block;
  const WorkRange range = split_work(args.outer * args.count, context.worker, context.workers);
  const char* data = static_cast<const char*>(buffers[0]);
  char* to = static_cast<char*>(buffers[2]) + range.begin * block;
  std::int64_t i = args.count == 0 ? 0 : range.begin % args.count;
  if (args.count > 0) data += range.begin / args.count * args.axis * block;
  for (std::int64_t r = range.begin; r < range.end; ++r, to += block) {
    const std::int64_t at = resolve_index(load_index(buffers[1], i, args.index_bytes), args.axis, context);
    take_block<kBytes>(at < 0 ? nullptr : data + at * block, to, block);
    if (++i == args.count) {
      i = 0;
      data += args.axis * block;
    }
  }
}

void gather(const void* arguments, void* const* buffers, const KernelContext& context) {
  const GatherArgs& args = *static_cast<const GatherArgs*>(arguments);
  switch (args.block) {
    case 1:
      return gather_rows<1>(args, buffers, context);
    case 2:
      return gather_rows<2>(args, buffers, context);
    case 4:
      return gather_rows<4>(args, buffers, context);
    case 8:
      return gather_rows<8>(args, buffers, context);
    default:
      return gather_rows<0>(args, buffers, context);
  }
}

template <int kBytes>
void gather_elements_of(const GatherElementsArgs& args, void* const* buffers, const KernelContext& context) {
  const std::int64_t last = args.rank - 1, columns = args.shape[last];
  const std::int64_t along_axis = args.stride[args.axis], along_last = args.axis == last ? 0 : args.stride[last];
  const WorkRange range = split_work(args.rows, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const char* from = static_cast<const char*>(buffers[0]);
    std::int64_t rest = row;
    for (std::int64_t d = last - 1; d >= 0; --d) {
      if (d != args.axis) from += rest % args.shape[d] * args.stride[d];
      rest /= args.shape[d];
    }
    char* const to = static_cast<char*>(buffers[2]) + row * columns * kBytes;
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t index = load_index(buffers[1], row * columns + c, args.index_bytes);
      const std::int64_t at = resolve_index(index, args.axis_size, context);
      take_block<kBytes>(at < 0 ? nullptr : from + c * along_last + at * along_axis, to + c * kBytes, kBytes);
    }
  }
}

void gather_elements(const void* arguments, void* const* buffers, const KernelContext& context) {
  const GatherElementsArgs& args = *static_cast<const GatherElementsArgs*>(arguments);
  switch (args.element) {
    case 1:
      return gather_elements_of<1>(args, buffers, context);
    case 2:
      return gather_elements_of<2>(args, buffers, context);
    case 4:
      return gather_elements_of<4>(args, buffers, context);
    default:
      return gather_elements_of<8>(args, buffers, context);
  }
}

void gather_nd(const void* arguments, void* const* buffers, const KernelContext& context) {
  const GatherNdArgs& args = *static_cast<const GatherNdArgs*>(arguments);
  const WorkRange range = split_work(args.batch * args.count, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    std::int64_t offset = row / args.count * args.batch_stride;
    bool is_inside = true;
    for (std::int64_t d = 0; d < args.depth; ++d) {
      const std::int64_t index = load_index(buffers[1], row * args.depth + d, args.index_bytes);
      const std::int64_t at = resolve_index(index, args.size[d], context);
      is_inside = is_inside && at >= 0;
      offset += (at < 0 ? 0 : at) * args.stride[d];
    }
    take_block<0>(is_inside ? static_cast<const char*>(buffers[0]) + offset : nullptr,
                  static_cast<char*>(buffers[2]) + row * args.block, args.block);
  }
}

template <int kBytes>
void one_hot_of(const OneHotArgs& args, void* const* buffers, const KernelContext& context) {
  const char* const values = static_cast<const char*>(buffers[1]);
  const WorkRange range = split_work(args.outer * args.depth, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const std::int64_t first = row / args.depth * args.inner, depth = row % args.depth;
    char* const to = static_cast<char*>(buffers[2]) + row * args.inner * kBytes;
    for (std::int64_t i = 0; i < args.inner; ++i) {
      const std::int64_t index = load_index(buffers[0], first + i, args.index_bytes);
      const bool is_on = (index < 0 ? index + args.depth : index) == depth;
      std::memcpy(to + i * kBytes, values + (is_on ? kBytes : 0), kBytes);
    }
  }
}

void one_hot(const void* arguments, void* const* buffers, const KernelContext& context) {
  const OneHotArgs& args = *static_cast<const OneHotArgs*>(arguments);
  switch (args.element) {
    case 1:
      return one_hot_of<1>(args, buffers, context);
    case 2:
      return one_hot_of<2>(args, buffers, context);
    case 4:
      return one_hot_of<4>(args, buffers, context);
    default:
      return one_hot_of<8>(args, buffers, context);
  }
}

}  // namespace

extern const KernelEntry gather_kernels[] = {{"gather", gather, nullptr},
                                             {"gather_elements", gather_elements, nullptr},
                                             {"gather_nd", gather_nd, nullptr},
                                             {"one_hot", one_hot, nullptr},
                                             {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
