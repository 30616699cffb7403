// tensor_scatter: see tensor_scatter.hpp. Split over the parts of samples. The cache is copied to y unless it is y.
//
// A position that is out of range, or not the expected one, is a fault; its step is not written.
#include "kernels/tensor_scatter.hpp"

#include <cstring>

#include "kernels/cache_rows_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void copy_rows(const TensorScatterArgs& args, const char* from, char* to) {
  const auto bytes = static_cast<std::size_t>(args.cache_row_bytes);
  if (args.cache.row == args.cache_row_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(args.rows) * bytes);
    return;
  }
  for (std::int64_t row = 0; row < args.rows; ++row)
    std::memcpy(to + row * args.cache.row, from + row * args.cache.row, bytes);
}

void tensor_scatter(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const TensorScatterArgs*>(raw_args);
  const auto* cache = static_cast<const char*>(buffers[0]);
  const auto* update = static_cast<const char*>(buffers[1]);
  const auto* positions = args.has_positions ? static_cast<const char*>(buffers[2]) : nullptr;
  auto* y = static_cast<char*>(buffers[args.has_positions ? 3 : 2]);
  const WorkRange range = split_work(args.batch * args.parts, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t sample = i / args.parts, part = i % args.parts;
    const std::int64_t offset = sample * args.cache.batch + part * args.cache.part;
    if (y != cache) copy_rows(args, cache + offset, y + offset);
    std::int64_t first = args.expected < 0 ? 0 : args.expected;
    if (positions != nullptr) std::memcpy(&first, positions + sample * 8, 8);
    if (args.expected >= 0 && first != args.expected) {
      report_index(context, first, args.expected);
      continue;
    }
    if (first < 0 || first > args.rows) {
      report_index(context, first, args.rows);
      continue;
    }
    const char* from = update + sample * args.update.batch + part * args.update.part;
    for (std::int64_t step = 0; step < args.steps; ++step) {
      std::int64_t row = first + step;
      if (row >= args.rows) {
        if (!args.is_circular || args.rows == 0) {
          report_index(context, row, args.rows);
          break;
        }
        row %= args.rows;
      }
      char* to = y + offset + row * args.cache.row;
      const char* source = from + step * args.update.row;
      if (args.format == CacheFormat::kF32)
        std::memcpy(to, source, static_cast<std::size_t>(args.row_bytes));
      else
        narrow_row(args.format, reinterpret_cast<const float*>(source), args.row_bytes / 4, to);
    }
  }
}

}  // namespace

extern const KernelEntry tensor_scatter_kernels[] = {{"tensor_scatter", tensor_scatter, nullptr},
                                                     {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
