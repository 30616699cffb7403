// nonzero_count, nonzero_write: see NonZeroArgs. Operands: x; coordinates (int64, [rank, count] at the front of room
// for [rank, elements]), count (int64); temporary: the count of each chunk (int64).
//
// compress_count, compress_write: see CompressArgs. Operands: data, condition (one byte each, 0 or not); the slices
// ([outer, count, inner] at the front of room for as many as there are conditions), count (int64); temporary: the count
// of each chunk (int64). A condition that holds beyond the axis is a fault.
//
// Element alignment; none may overlap. Split over chunks, compress_write over outer slices and chunks.
#include "kernels/compaction.hpp"

#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// The sum of the counts of the chunks before `chunk`.
std::int64_t offset_of(const std::int64_t* counts, std::int64_t chunk) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < chunk; ++i) sum += counts[i];
  return sum;
}

WorkRange chunk_of(std::int64_t length, std::int64_t chunk, std::int64_t chunks) {
  return split_work(length, static_cast<int>(chunk), static_cast<int>(chunks));
}

template <class T>
std::int64_t count_range(const T* x, T mask, WorkRange range) {
  std::int64_t count = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) count += (x[i] & mask) != 0;
  return count;
}

template <class T>
void write_range(const NonZeroArgs& args, const T* x, WorkRange range, std::int64_t* to, std::int64_t total) {
  if (range.begin == range.end) return;
  const T mask = static_cast<T>(args.mask);
  std::int64_t at[kMaxCompactionRank] = {};
  std::int64_t rest = range.begin;
  for (int axis = args.rank - 1; axis >= 0; --axis) {
    at[axis] = rest % args.dims[axis];
    rest /= args.dims[axis];
  }
  const int last = args.rank - 1;
  for (std::int64_t i = range.begin; i < range.end;) {
    // A row, or the part of it that belongs to the chunk.
    const std::int64_t left = last < 0 ? 1 : args.dims[last] - at[last];
    const std::int64_t count = range.end - i < left ? range.end - i : left;
    for (std::int64_t j = 0; j < count; ++j) {
      if ((x[i + j] & mask) == 0) continue;
      for (int axis = 0; axis < last; ++axis) to[axis * total] = at[axis];
      if (last >= 0) to[last * total] = at[last] + j;
      ++to;
    }
    i += count;
    if (last < 0) continue;
    at[last] = 0;
    for (int axis = last - 1; axis >= 0 && ++at[axis] == args.dims[axis]; --axis) at[axis] = 0;
  }
}

template <class T>
void nonzero(const NonZeroArgs& args, void* const* buffers, const KernelContext& context, bool is_writing) {
  const T* x = static_cast<const T*>(buffers[0]);
  std::int64_t* counts = static_cast<std::int64_t*>(buffers[3]);
  const WorkRange chunks = split_work(args.chunks, context.worker, context.workers);
  const std::int64_t total = is_writing ? offset_of(counts, args.chunks) : 0;
  for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const WorkRange range = chunk_of(args.elements, chunk, args.chunks);
    if (is_writing) {
      write_range(args, x, range, static_cast<std::int64_t*>(buffers[1]) + offset_of(counts, chunk), total);
    } else {
      counts[chunk] = count_range(x, static_cast<T>(args.mask), range);
    }
  }
  if (is_writing && context.worker == 0) *static_cast<std::int64_t*>(buffers[2]) = total;
}

void nonzero(const void* raw_args, void* const* buffers, const KernelContext& context, bool is_writing) {
  const NonZeroArgs& args = *static_cast<const NonZeroArgs*>(raw_args);
  if (args.bytes == 1) return nonzero<std::uint8_t>(args, buffers, context, is_writing);
  if (args.bytes == 2) return nonzero<std::uint16_t>(args, buffers, context, is_writing);
  if (args.bytes == 4) return nonzero<std::uint32_t>(args, buffers, context, is_writing);
  nonzero<std::uint64_t>(args, buffers, context, is_writing);
}

void nonzero_count(const void* args, void* const* buffers, const KernelContext& context) {
  nonzero(args, buffers, context, false);
}

void nonzero_write(const void* args, void* const* buffers, const KernelContext& context) {
  nonzero(args, buffers, context, true);
}

void compress_count(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const CompressArgs& args = *static_cast<const CompressArgs*>(raw_args);
  const std::uint8_t* condition = static_cast<const std::uint8_t*>(buffers[1]);
  std::int64_t* counts = static_cast<std::int64_t*>(buffers[4]);
  const std::int64_t used = args.conditions < args.axis ? args.conditions : args.axis;
  const WorkRange chunks = split_work(args.chunks, context.worker, context.workers);
  for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk)
    counts[chunk] = count_range<std::uint8_t>(condition, 0xFF, chunk_of(used, chunk, args.chunks));
  if (context.worker != 0) return;
  for (std::int64_t i = used; i < args.conditions; ++i)
    if (condition[i] != 0) return report_index(context, i, args.axis);
}

void compress_write(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const CompressArgs& args = *static_cast<const CompressArgs*>(raw_args);
  const char* data = static_cast<const char*>(buffers[0]);
  const std::uint8_t* condition = static_cast<const std::uint8_t*>(buffers[1]);
  const std::int64_t* counts = static_cast<const std::int64_t*>(buffers[4]);
  const std::int64_t used = args.conditions < args.axis ? args.conditions : args.axis;
  const std::int64_t total = offset_of(counts, args.chunks), inner = args.inner;
  const WorkRange work = split_work(args.outer * args.chunks, context.worker, context.workers);
  for (std::int64_t i = work.begin; i < work.end; ++i) {
    const std::int64_t outer = i / args.chunks, chunk = i % args.chunks;
    const WorkRange range = chunk_of(used, chunk, args.chunks);
    const char* from = data + outer * args.axis * inner;
    char* to = static_cast<char*>(buffers[2]) + (outer * total + offset_of(counts, chunk)) * inner;
    for (std::int64_t at = range.begin; at < range.end; ++at) {
      if (condition[at] == 0) continue;
      const char* slice = from + at * inner;
      if (inner == 4) {
        std::memcpy(to, slice, 4);
      } else if (inner == 8) {
        std::memcpy(to, slice, 8);
      } else {
        std::memcpy(to, slice, static_cast<std::size_t>(inner));
      }
      to += inner;
    }
  }
  if (context.worker == 0) *static_cast<std::int64_t*>(buffers[3]) = total;
}

}  // namespace

extern const KernelEntry compaction_kernels[] = {{"nonzero_count", nonzero_count, nullptr},
                                                 {"nonzero_write", nonzero_write, nullptr},
                                                 {"compress_count", compress_count, nullptr},
                                                 {"compress_write", compress_write, nullptr},
                                                 {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
