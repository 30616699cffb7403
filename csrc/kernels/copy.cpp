// Copies bytes, for a Concat, a Split or an output that cannot be a view.
//
// copy_bytes  buffers: input, output, of equal size; any alignment. Not in place.
#include <cstring>

#include "kernels/copy.hpp"

namespace engine::ENGINE_ISA_NS {

static void copy_bytes(const void* args, void* const* buffers, const KernelContext& context) {
  const CopyArgs& copy = *static_cast<const CopyArgs*>(args);
  // Whole cache lines, so that no two workers write the same line.
  constexpr std::int64_t kLine = 64;
  const WorkRange lines = split_work((copy.bytes + kLine - 1) / kLine, context.worker, context.workers);
  const std::int64_t begin = lines.begin * kLine;
  const std::int64_t end = lines.end * kLine < copy.bytes ? lines.end * kLine : copy.bytes;
  if (begin < end) {
    std::memcpy(static_cast<char*>(buffers[1]) + begin, static_cast<const char*>(buffers[0]) + begin,
                static_cast<std::size_t>(end - begin));
  }
}

extern const KernelEntry copy_kernels[] = {{"copy_bytes", copy_bytes, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
