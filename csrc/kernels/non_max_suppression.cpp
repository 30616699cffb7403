// nms_boxes: corners of all boxes; nms_select: the selected boxes of each batch and class; nms_write: their list.
//
// Operands: boxes [batches, boxes, 4], scores [batches, classes, boxes], overlap (one f32) and least score (one f32) if
// given; selected: (batch, class, box) of int64, at most batches * classes * limit of them, and their number (int64).
// Temporaries: BoxCorners [batches, boxes], number of selected boxes (int64) and selected boxes (uint32, room for
// `limit`) of each batch and class. Element alignment; none may overlap. Scratch of nms_select: `boxes` keys of 8
// bytes, and five planes of `limit` floats. nms_boxes is split over boxes, nms_select over batches and classes;
// nms_write runs on one worker.
//
// Candidates come from a heap in descending order of scores, the first of equal ones, and are compared with the
// selected boxes, kBlock at a time; most of them are never taken from the heap if the limit is small. A NaN exceeds
// nothing, so a box with a NaN overlaps with no other.
#include "kernels/non_max_suppression.hpp"

#include <cmath>
#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kBlock = 16;

struct Buffers {
  const float *boxes, *scores;
  float overlap, least;
  std::int64_t *selected, *total;
  BoxCorners* corners;
  std::int64_t* counts;
  std::uint32_t* chosen;
};

Buffers buffers_of(const NonMaxSuppressionArgs& args, void* const* buffers) {
  Buffers b = {};
  b.boxes = static_cast<const float*>(buffers[0]);
  b.scores = static_cast<const float*>(buffers[1]);
  std::int64_t next = 2;
  b.overlap = args.has_overlap ? *static_cast<const float*>(buffers[next++]) : 0.0f;
  b.least = args.has_least ? *static_cast<const float*>(buffers[next++]) : -INFINITY;
  b.selected = static_cast<std::int64_t*>(buffers[next]);
  b.total = static_cast<std::int64_t*>(buffers[next + 1]);
  b.corners = static_cast<BoxCorners*>(buffers[next + 2]);
  b.counts = static_cast<std::int64_t*>(buffers[next + 3]);
  b.chosen = static_cast<std::uint32_t*>(buffers[next + 4]);
  return b;
}

void nms_boxes(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const NonMaxSuppressionArgs& args = *static_cast<const NonMaxSuppressionArgs*>(raw_args);
  const Buffers b = buffers_of(args, buffers);
  const WorkRange range = split_work(args.batches * args.boxes, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    BoxCorners& box = b.corners[i];
    float sides[2];
    for (int axis = 0; axis < 2; ++axis) {
      float first = b.boxes[i * 4 + axis], second = b.boxes[i * 4 + 2 + axis];
      if (args.is_centered) {
        const float half = second / 2, centre = first;
        first = centre - half;
        second = centre + half;
      }
      const bool is_number = (first == first) & (second == second);
      box.low[axis] = is_number ? (second < first ? second : first) : NAN;
      box.high[axis] = is_number ? (second < first ? first : second) : NAN;
      sides[axis] = box.high[axis] - box.low[axis];
    }
    box.area = sides[0] * sides[1];
  }
}

// The order of candidates: the greater key comes first. The score, as an integer with the same order, and the position.
ENGINE_INLINE std::uint64_t key_of(float score, std::int64_t position) {
  score += 0.0f;  // -0 is 0
  std::uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  bits ^= (bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u;
  return static_cast<std::uint64_t>(bits) << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(position));
}

void sink(std::uint64_t* heap, std::int64_t count, std::int64_t at, std::uint64_t key) {
  for (std::int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && heap[child + 1] > heap[child]) ++child;
    if (heap[child] <= key) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = key;
}

// The corners and areas of the selected boxes, each coordinate in a plane of its own.
struct Kept {
  float *low_0, *low_1, *high_0, *high_1, *area;
  std::int64_t count;

  Kept(float* planes, std::int64_t room)
      : low_0(planes),
        low_1(planes + room),
        high_0(planes + 2 * room),
        high_1(planes + 3 * room),
        area(planes + 4 * room),
        count(0) {}

  ENGINE_ALWAYS_INLINE void add(const BoxCorners& box) {
    low_0[count] = box.low[0];
    low_1[count] = box.low[1];
    high_0[count] = box.high[0];
    high_1[count] = box.high[1];
    area[count] = box.area;
    ++count;
  }

  ENGINE_ALWAYS_INLINE std::int32_t overlaps(const BoxCorners& box, std::int64_t i, float most) const {
    const float top = box.low[0] < low_0[i] ? low_0[i] : box.low[0];
    const float left = box.low[1] < low_1[i] ? low_1[i] : box.low[1];
    const float bottom = high_0[i] < box.high[0] ? high_0[i] : box.high[0];
    const float right = high_1[i] < box.high[1] ? high_1[i] : box.high[1];
    const float height = bottom - top, width = right - left;
    const float common = (height > 0 ? height : 0) * (width > 0 ? width : 0);
    const float together = area[i] + box.area - common;
    return (area[i] > 0) & (box.area > 0) & (together > 0) & (common / together > most);
  }

  ENGINE_ALWAYS_INLINE bool any_overlaps(const BoxCorners& box, float most) const {
    std::int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock) {
      std::int32_t found = 0;
      for (std::int64_t j = 0; j < kBlock; ++j) found |= overlaps(box, i + j, most);
      if (found != 0) return true;
    }
    for (; i < count; ++i)
      if (overlaps(box, i, most) != 0) return true;
    return false;
  }
};

void select_boxes(const NonMaxSuppressionArgs& args, const Buffers& b, std::int64_t task, void* scratch) {
  const float* scores = b.scores + task * args.boxes;
  const BoxCorners* corners = b.corners + task / args.classes * args.boxes;
  std::uint64_t* heap = static_cast<std::uint64_t*>(scratch);
  std::int64_t waiting = 0;
  for (std::int64_t i = 0; i < args.boxes; ++i)
    if (scores[i] > b.least) heap[waiting++] = key_of(scores[i], i);
  for (std::int64_t i = waiting / 2 - 1; i >= 0; --i) sink(heap, waiting, i, heap[i]);
  Kept kept(reinterpret_cast<float*>(heap + args.boxes), args.limit);
  std::uint32_t* chosen = b.chosen + task * args.limit;
  while (waiting > 0 && kept.count < args.limit) {
    const std::uint32_t best = 0xFFFFFFFFu - static_cast<std::uint32_t>(heap[0]);
    --waiting;
    sink(heap, waiting, 0, heap[waiting]);
    if (kept.any_overlaps(corners[best], b.overlap)) continue;
    chosen[kept.count] = best;
    kept.add(corners[best]);
  }
  b.counts[task] = kept.count;
}

void nms_select(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const NonMaxSuppressionArgs& args = *static_cast<const NonMaxSuppressionArgs*>(raw_args);
  const Buffers b = buffers_of(args, buffers);
  const WorkRange range = split_work(args.batches * args.classes, context.worker, context.workers);
  for (std::int64_t task = range.begin; task < range.end; ++task) select_boxes(args, b, task, context.scratch);
}

void nms_write(const void* raw_args, void* const* buffers, const KernelContext&) {
  const NonMaxSuppressionArgs& args = *static_cast<const NonMaxSuppressionArgs*>(raw_args);
  const Buffers b = buffers_of(args, buffers);
  std::int64_t at = 0;
  for (std::int64_t task = 0; task < args.batches * args.classes; ++task)
    for (std::int64_t i = 0; i < b.counts[task]; ++i, ++at) {
      b.selected[3 * at] = task / args.classes;
      b.selected[3 * at + 1] = task % args.classes;
      b.selected[3 * at + 2] = b.chosen[task * args.limit + i];
    }
  *b.total = at;
}

}  // namespace

extern const KernelEntry non_max_suppression_kernels[] = {{"nms_boxes", nms_boxes, nullptr},
                                                          {"nms_select", nms_select, nullptr},
                                                          {"nms_write", nms_write, nullptr},
                                                          {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
