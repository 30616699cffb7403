// top_k: the k largest (smallest) elements of each line in descending (ascending) order, with their positions; equal
// elements in order of position. A NaN is larger than any number; zeros are equal.
//
// Operands: x, values [outer, k, inner], positions (int64, the same shape); element alignment; none may overlap. Split
// over lines. Scratch: k entries.
//
// A heap holds the best k elements so far, the worst of them on top: most elements of a long line are rejected by one
// comparison, those of contiguous lines kStretch at a time.
#include "kernels/top_k.hpp"

#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Maps values to integers with the same order.
ENGINE_INLINE std::int64_t rank_of(float x) {
  if (x != x) return INT64_MAX;
  x += 0.0f;  // -0 is 0
  std::int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) & INT32_MAX);
}
ENGINE_INLINE std::int64_t rank_of(double x) {
  if (x != x) return INT64_MAX;
  x += 0.0;
  std::int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 63) & INT64_MAX);
}
ENGINE_INLINE std::int64_t rank_of(std::uint64_t x) {
  return static_cast<std::int64_t>(x ^ (std::uint64_t{1} << 63));
}
ENGINE_INLINE std::int64_t rank_of(std::uint32_t x) {
  return x;
}
ENGINE_INLINE std::int64_t rank_of(std::int16_t x) {
  return x;
}
ENGINE_INLINE std::int64_t rank_of(std::uint16_t x) {
  return x;
}
ENGINE_INLINE std::int64_t rank_of(std::int8_t x) {
  return x;
}
ENGINE_INLINE std::int64_t rank_of(std::uint8_t x) {
  return x;
}
ENGINE_INLINE std::int64_t rank_of(std::int32_t x) {
  return x;
}
ENGINE_INLINE std::int64_t rank_of(std::int64_t x) {
  return x;
}

// Whether `a` comes after `b`.
ENGINE_INLINE bool is_worse(const TopKEntry& a, const TopKEntry& b) {
  return a.key < b.key || (a.key == b.key && a.position > b.position);
}

// Moves `entry` down from position `at` to its place in a heap of `count` entries.
void sink(TopKEntry* heap, std::int64_t count, std::int64_t at, TopKEntry entry) {
  for (std::int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && is_worse(heap[child + 1], heap[child])) ++child;
    if (!is_worse(heap[child], entry)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
}

constexpr std::int64_t kStretch = 64;

// Whether none of kStretch elements is better than `worst`; a NaN may be.
template <class T>
ENGINE_INLINE bool is_rejected(const T* x, T worst, bool is_smallest) {
  int better = 0;
  if (is_smallest)
    for (int i = 0; i < kStretch; ++i) better |= static_cast<int>(!(x[i] >= worst));
  else
    for (int i = 0; i < kStretch; ++i) better |= static_cast<int>(!(x[i] <= worst));
  return better == 0;
}

template <class T>
void select_line(const TopKArgs& args, const T* x, TopKEntry* heap) {
  const auto entry_of = [&](std::int64_t i) {
    const std::int64_t rank = rank_of(x[i * args.inner]);
    return TopKEntry{args.is_smallest ? ~rank : rank, i};
  };
  for (std::int64_t i = 0; i < args.k; ++i) heap[i] = entry_of(i);
  for (std::int64_t i = args.k / 2 - 1; i >= 0; --i) sink(heap, args.k, i, heap[i]);
  for (std::int64_t i = args.k; i < args.axis;) {
    const std::int64_t end = i + kStretch < args.axis ? i + kStretch : args.axis;
    if (args.inner == 1 && end - i == kStretch && is_rejected(x + i, x[heap[0].position], args.is_smallest)) {
      i = end;
      continue;
    }
    for (; i < end; ++i) {
      const TopKEntry entry = entry_of(i);
      if (entry.key > heap[0].key) sink(heap, args.k, 0, entry);  // equal keys keep the earlier position
    }
  }
  for (std::int64_t last = args.k - 1; last > 0; --last) {
    const TopKEntry worst = heap[0];
    sink(heap, last, 0, heap[last]);
    heap[last] = worst;
  }
}

template <class T>
void top_k(const TopKArgs& args, void* const* buffers, const KernelContext& context) {
  const T* x = static_cast<const T*>(buffers[0]);
  T* values = static_cast<T*>(buffers[1]);
  std::int64_t* positions = static_cast<std::int64_t*>(buffers[2]);
  if (args.k == 0) return;
  TopKEntry* heap = static_cast<TopKEntry*>(context.scratch);
  const WorkRange range = split_work(args.outer * args.inner, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t outer = i / args.inner, inner = i % args.inner;
    const T* line = x + outer * args.axis * args.inner + inner;
    select_line(args, line, heap);
    for (std::int64_t j = 0; j < args.k; ++j) {
      const std::int64_t to = (outer * args.k + j) * args.inner + inner;
      values[to] = line[heap[j].position * args.inner];
      positions[to] = heap[j].position;
    }
  }
}

void top_k(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const TopKArgs& args = *static_cast<const TopKArgs*>(raw_args);
  switch (args.type) {
    case ElementCode::kF32:
      return top_k<float>(args, buffers, context);
    case ElementCode::kF64:
      return top_k<double>(args, buffers, context);
    case ElementCode::kU64:
      return top_k<std::uint64_t>(args, buffers, context);
    case ElementCode::kU32:
      return top_k<std::uint32_t>(args, buffers, context);
    case ElementCode::kI16:
      return top_k<std::int16_t>(args, buffers, context);
    case ElementCode::kU16:
      return top_k<std::uint16_t>(args, buffers, context);
    case ElementCode::kI8:
      return top_k<std::int8_t>(args, buffers, context);
    case ElementCode::kU8:
      return top_k<std::uint8_t>(args, buffers, context);
    case ElementCode::kI32:
      return top_k<std::int32_t>(args, buffers, context);
    case ElementCode::kI64:
      return top_k<std::int64_t>(args, buffers, context);
    default:  // prepare accepts no other
      break;
  }
}

}  // namespace

extern const KernelEntry top_k_kernels[] = {{"top_k", top_k, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
