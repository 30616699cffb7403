// The boxes of high scores that overlap little with better ones, for each batch and class; see rounded.cl.

// The corners of smallest and of largest coordinates, and the area, which is NaN for a box with a NaN: it overlaps with
// none then.
__kernel void find_corners(__global const float* restrict boxes, __global float4* restrict corners,
                           __global float* restrict areas) {
  const ulong i = get_global_id(0);
  const float4 box = vload4(i, boxes);
  float2 first = box.lo, second = box.hi;
#if CENTERED
  const float2 half_size = box.hi * 0.5f;
  first = box.lo - half_size;
  second = box.lo + half_size;
#endif
  const float2 low = fmin(first, second), high = fmax(first, second);
  const bool is_number = !any(isnan(first)) && !any(isnan(second));
  corners[i] = (float4)(low, high);
  areas[i] = is_number ? product(high.x - low.x, high.y - low.y) : NAN;
}

// Whether the ratio of the common area and that of both together exceeds `most`, of 0..1.
inline bool overlap(float4 a, float a_area, float4 b, float b_area, float most) {
  const float2 sides = fmin(a.hi, b.hi) - fmax(a.lo, b.lo);
  if (!(sides.x > 0.0f && sides.y > 0.0f)) return false;
  const float common = product(sides.x, sides.y), together = a_area + b_area - common;
  return a_area > 0.0f && b_area > 0.0f && together > 0.0f && quotient(common, together) > most;
}

// The candidate that is better, of equal scores the first.
typedef struct {
  float score;
  int place;
} Candidate;

inline Candidate better_of(Candidate a, Candidate b) {
  return b.score > a.score || (b.score == a.score && b.place < a.place) ? b : a;
}

// A group selects the boxes of a batch and class: the best of those waiting, again and again. An item has every GROUP-th
// box, and keeps those that still may be selected in every GROUP-th place of `waiting`, in order.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void select_boxes(
    __global const float4* restrict corners, __global const float* restrict areas, __global const float* restrict scores,
    __global Candidate* restrict waiting, __global int* restrict chosen, __global int* restrict counts, const float most,
    const float least) {
  __local Candidate best_of[GROUP];
  const int item = get_local_id(0);
  const ulong task = get_group_id(0);
  corners += task / CLASSES * BOXES;
  areas += task / CLASSES * BOXES;
  scores += task * BOXES;
  waiting += task * ROOM + item;
  chosen += task * LIMIT;
  Candidate none;
  none.score = -INFINITY;
  none.place = INT_MAX;
  Candidate best = none;
  int own = 0, count = 0;
  for (int i = item; i < BOXES; i += GROUP) {
    Candidate each;
    each.score = scores[i];
    each.place = i;
    if (!(each.score > least)) continue;
    waiting[own++ * GROUP] = each;
    best = better_of(best, each);
  }
  for (;;) {
    best_of[item] = best;
    for (int step = GROUP / 2; step > 0; step /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (item < step) best_of[item] = better_of(best_of[item], best_of[item + step]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int last = best_of[0].place;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (last == INT_MAX) break;
    if (item == 0) chosen[count] = last;
    if (++count == LIMIT) break;
    const float4 box = corners[last];
    const float area = areas[last];
    int kept = 0;
    best = none;
    for (int i = 0; i < own; ++i) {
      const Candidate each = waiting[i * GROUP];
      if (each.place == last || overlap(box, area, corners[each.place], areas[each.place], most)) continue;
      waiting[kept++ * GROUP] = each;
      best = better_of(best, each);
    }
    own = kept;
  }
  if (item == 0) counts[task] = count;
}

// The list of all selected boxes: an item writes those of a batch and class.
__kernel void list_boxes(__global const int* restrict chosen, __global const int* restrict counts,
                         __global long* restrict selected, __global long* restrict total) {
  const int task = get_global_id(0), count = counts[task];
  ulong at = 0;
  for (int other = 0; other < task; ++other) at += counts[other];
  for (int i = 0; i < count; ++i) {
    selected[3 * (at + i)] = task / CLASSES;
    selected[3 * (at + i) + 1] = task % CLASSES;
    selected[3 * (at + i) + 2] = chosen[(ulong)task * LIMIT + i];
  }
  if (task == TASKS - 1) *total = at + count;
}
