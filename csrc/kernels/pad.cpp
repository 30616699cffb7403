// pad, fill, trilu: see pad.hpp.
//
// Operands: source (for pad and trilu), destination; any alignment; they must not overlap. Split over rows of the
// destination, or over its cache lines.
#include "kernels/pad.hpp"

#include <cstring>

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kLine = 64;

inline __attribute__((always_inline)) std::int64_t clamp(std::int64_t value, std::int64_t low, std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

void fill_pattern(char* to, std::int64_t bytes, std::int64_t pattern) {
  std::int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) std::memcpy(to + i, &pattern, 8);
  if (i < bytes) std::memcpy(to + i, &pattern, static_cast<std::size_t>(bytes - i));
}

std::int64_t remainder(std::int64_t value, std::int64_t period) {
  const std::int64_t rest = value % period;
  return rest < 0 ? rest + period : rest;
}

// The source position, in a dimension of `size`, of an index that may lie outside; -1: none.
std::int64_t source_index(PadMode mode, std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return index;
  if (mode == PadMode::kConstant) return -1;
  if (mode == PadMode::kEdge) return clamp(index, 0, size - 1);
  if (mode == PadMode::kWrap) return remainder(index, size);
  if (size == 1) return 0;
  const std::int64_t at = remainder(index, 2 * (size - 1));
  return at < size ? at : 2 * (size - 1) - at;
}

// Elements [begin, end) of the last dimension, each from its source position.
void pad_elements(const PadArgs& args, const char* from, char* to, std::int64_t begin, std::int64_t end) {
  const int last = args.rank - 1;
  if (begin >= end) return;
  if (args.mode == PadMode::kConstant) {
    fill_pattern(to + begin * args.block, (end - begin) * args.block, args.pattern);
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t at = source_index(args.mode, i - args.begin[last], args.in[last]);
    std::memcpy(to + i * args.block, from + at * args.block, static_cast<std::size_t>(args.block));
  }
}

void pad_row(const PadArgs& args, const char* from, char* to, std::int64_t row) {
  const int last = args.rank - 1;
  for (int d = last - 1; d >= 0; --d) {
    const std::int64_t at = source_index(args.mode, row % args.out[d] - args.begin[d], args.in[d]);
    if (at < 0) return fill_pattern(to, args.out[last] * args.block, args.pattern);
    from += at * args.stride[d];
    row /= args.out[d];
  }
  const std::int64_t middle = clamp(args.begin[last], 0, args.out[last]);
  const std::int64_t right = clamp(args.begin[last] + args.in[last], middle, args.out[last]);
  pad_elements(args, from, to, 0, middle);
  if (right > middle) {
    std::memcpy(to + middle * args.block, from + (middle - args.begin[last]) * args.block,
                static_cast<std::size_t>((right - middle) * args.block));
  }
  pad_elements(args, from, to, right, args.out[last]);
}

void pad(const void* arguments, void* const* buffers, const KernelContext& context) {
  const PadArgs& args = *static_cast<const PadArgs*>(arguments);
  const std::int64_t row_bytes = args.out[args.rank - 1] * args.block;
  const WorkRange range = split_work(args.rows, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row)
    pad_row(args, static_cast<const char*>(buffers[0]) + args.skip, static_cast<char*>(buffers[1]) + row * row_bytes,
            row);
}

void fill(const void* arguments, void* const* buffers, const KernelContext& context) {
  const FillArgs& args = *static_cast<const FillArgs*>(arguments);
  const WorkRange lines = split_work((args.bytes + kLine - 1) / kLine, context.worker, context.workers);
  const std::int64_t begin = lines.begin * kLine, end = clamp(lines.end * kLine, begin, args.bytes);
  if (begin < end) fill_pattern(static_cast<char*>(buffers[0]) + begin, end - begin, args.pattern);
}

void trilu(const void* arguments, void* const* buffers, const KernelContext& context) {
  const TriluArgs& args = *static_cast<const TriluArgs*>(arguments);
  const std::int64_t row_bytes = args.columns * args.element;
  const WorkRange range = split_work(args.matrices * args.rows, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const char* from = static_cast<const char*>(buffers[0]) + i * row_bytes;
    char* to = static_cast<char*>(buffers[1]) + i * row_bytes;
    // Columns [keep, end) of a row for the upper triangle, [0, keep) for the lower.
    const std::int64_t first = i % args.rows + args.diagonal + (args.upper ? 0 : 1);
    const std::int64_t split = clamp(first, 0, args.columns) * args.element;
    const std::int64_t kept = args.upper ? split : 0, kept_end = args.upper ? row_bytes : split;
    std::memset(to, 0, static_cast<std::size_t>(kept));
    std::memcpy(to + kept, from + kept, static_cast<std::size_t>(kept_end - kept));
    std::memset(to + kept_end, 0, static_cast<std::size_t>(row_bytes - kept_end));
  }
}

}  // namespace

extern const KernelEntry pad_kernels[] = {
    {"pad", pad, nullptr}, {"fill", fill, nullptr}, {"trilu", trilu, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
