// The boxes of high scores that overlap little with better ones, for each batch and class; see rounded.cl.

// The corners of smallest and of largest coordinates, and the area, which is NaN for a box with a NaN: such a box
// overlaps with no other.
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

// Whether the ratio of the area of the intersection to the area of the union exceeds `most`, of 0..1.
inline bool overlap(float4 a, float a_area, float4 b, float b_area, float most) {
  const float2 sides = fmin(a.hi, b.hi) - fmax(a.lo, b.lo);
  if (!(sides.x > 0.0f && sides.y > 0.0f)) return false;
  const float common = product(sides.x, sides.y), together = a_area + b_area - common;
  return a_area > 0.0f && b_area > 0.0f && together > 0.0f && quotient(common, together) > most;
}

// A box that may be selected: `place` is its index.
typedef struct {
  float score;
  int place;
} Candidate;

inline bool comes_before(Candidate a, Candidate b) {
  return a.score > b.score || (a.score == b.score && a.place < b.place);
}

#if GROUP == 1
// Candidates form a heap, so that only those that are looked at are sorted: moves the one at a place down to its own
// place, so that none of `count` precedes its parent.
inline void sift(__global Candidate* heap, int at, const int count) {
  const Candidate own = heap[at];
  for (int next = 2 * at + 1; next < count; next = 2 * at + 1) {
    next += next + 1 < count && comes_before(heap[next + 1], heap[next]);
    if (!comes_before(heap[next], own)) break;
    heap[at] = heap[next];
    at = next;
  }
  heap[at] = own;
}
#else
// Sorts `count` candidates, the best first: runs of 1, 2, 4, ... are merged, an item finding the ranks of its elements in
// the neighbouring run. All items of the group call this. The result is one of both arrays.
inline __global Candidate* sorted(__global Candidate* from, __global Candidate* to, const int count) {
  for (int run = 1; run < count; run *= 2) {
    for (int i = get_local_id(0); i < count; i += GROUP) {
      const Candidate own = from[i];
      const int other = (i / run ^ 1) * run, is_second = i / run & 1, end = clamp(count - other, 0, run);
      int low = 0, high = end;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (comes_before(from[other + middle], own)) low = middle + 1;
        else high = middle;
      }
      to[i - is_second * run + low] = own;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    __global Candidate* sorted_runs = to;
    to = from;
    from = sorted_runs;
  }
  return from;
}
#endif

// Selected boxes: the lowest x, the lowest y, the highest x and the highest y of all, each LIMIT numbers, so that WIDE
// boxes are compared at once; and what they are.
#if WIDE == 1
#define COORDINATES(from, at) (from)[at]
#define ANY(mask) (mask)
typedef float coordinates;
#else
#define JOINED(a, b) a##b
#define VECTOR(type, width) JOINED(type, width)
#define COORDINATES(from, at) VECTOR(vload, WIDE)(0, (from) + (at))
#define ANY(mask) any(mask)
typedef VECTOR(float, WIDE) coordinates;
#endif

inline bool overlaps_selected(const float4 box, const float area, __global const float* sides,
                              __global const int* chosen, __global const float* areas, const int first, const int step,
                              const int count, const float most) {
  for (int k = first * WIDE; k < count; k += step * WIDE) {
    const coordinates low_x = COORDINATES(sides, k), low_y = COORDINATES(sides + ROOM, k);
    const coordinates high_x = COORDINATES(sides + 2 * ROOM, k), high_y = COORDINATES(sides + 3 * ROOM, k);
    if (!ANY(fmin(high_x, (coordinates)box.z) > fmax(low_x, (coordinates)box.x) &&
             fmin(high_y, (coordinates)box.w) > fmax(low_y, (coordinates)box.y)))
      continue;
    for (int n = k; n < min(k + WIDE, count); ++n) {
      const float4 other = (float4)(sides[n], sides[ROOM + n], sides[2 * ROOM + n], sides[3 * ROOM + n]);
      if (overlap(other, areas[chosen[n]], box, area, most)) return true;
    }
  }
  return false;
}

// A group selects the boxes of a batch and class. Of those whose scores exceed `least`, it takes BLOCK at a time, the
// best first: items compare them with all boxes selected before, SHARES items each, and with one another; one item then
// goes through the block, and decides.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void select_boxes(
    __global const float4* restrict corners, __global const float* restrict areas, __global const float* restrict scores,
    __global Candidate* waiting, __global float* sides, __global int* chosen, __global int* restrict counts,
    const float most, const float least) {
  __local int found[GROUP], places[BLOCK];
  __local float4 boxes[BLOCK];
  __local float box_areas[BLOCK];
  __local ulong overlapping[BLOCK], selected;
  __local uchar is_out[SHARES][BLOCK];
  const int item = get_local_id(0);
  const ulong task = get_group_id(0);
  corners += task / CLASSES * BOXES;
  areas += task / CLASSES * BOXES;
  scores += task * BOXES;
  waiting += task * (ulong)WAITING;
  sides += task * (4ul * ROOM);
  chosen += task * LIMIT;
  // Items collect the candidates of neighbouring boxes.
  const int begin = min(item * PER_ITEM, BOXES), end = min(begin + PER_ITEM, BOXES);
  int own = 0;
  for (int i = begin; i < end; ++i) own += scores[i] > least;
  found[item] = own;
  barrier(CLK_LOCAL_MEM_FENCE);
  int at = 0, candidates = 0;
  for (int i = 0; i < GROUP; ++i) {
    at += i < item ? found[i] : 0;
    candidates += found[i];
  }
  for (int i = begin; i < end; ++i) {
    if (!(scores[i] > least)) continue;
    waiting[at].score = scores[i];
    waiting[at++].place = i;
  }
#if GROUP == 1
  for (int i = candidates / 2 - 1; i >= 0; --i) sift(waiting, i, candidates);
#else
  barrier(CLK_GLOBAL_MEM_FENCE);
  __global const Candidate* order = sorted(waiting, waiting + BOXES, candidates);
#endif
  int count = 0;
  for (int start = 0; start < candidates && count < LIMIT; start += BLOCK) {
    const int length = min(BLOCK, candidates - start);
    for (int c = item; c < length; c += GROUP) {
#if GROUP == 1
      const int place = waiting[0].place, left = candidates - start - c - 1;
      waiting[0] = waiting[left];
      sift(waiting, 0, left);
#else
      const int place = order[start + c].place;
#endif
      places[c] = place;
      boxes[c] = corners[place];
      box_areas[c] = areas[place];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int c = item % BLOCK; c < length; c += GROUP) {
      const int share = item / BLOCK;
      const bool is_covered =
          overlaps_selected(boxes[c], box_areas[c], sides, chosen, areas, share, SHARES, count, most);
      is_out[share][c] = is_covered;
      if (share > 0) continue;
      ulong earlier = 0;
      for (int j = 0; j < (is_covered ? 0 : c); ++j)
        earlier |= (ulong)overlap(boxes[j], box_areas[j], boxes[c], box_areas[c], most) << j;
      overlapping[c] = earlier;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0) {
      ulong taken = 0;
      for (int c = 0; c < length; ++c) {
        bool is_covered = overlapping[c] & taken;
        for (int share = 0; share < SHARES; ++share) is_covered |= is_out[share][c];
        if (!is_covered) taken |= 1ul << c;
      }
      selected = taken;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong taken = selected;
    for (int c = item; c < length; c += GROUP) {
      const int to = count + popcount(taken & ((1ul << c) - 1));
      if (!(taken >> c & 1) || to >= LIMIT) continue;
      chosen[to] = places[c];
      sides[to] = boxes[c].x;
      sides[ROOM + to] = boxes[c].y;
      sides[2 * ROOM + to] = boxes[c].z;
      sides[3 * ROOM + to] = boxes[c].w;
    }
    count = min(count + (int)popcount(taken), LIMIT);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  }
  if (item == 0) counts[task] = count;
}

// The list of all selected boxes: an item writes the boxes of a batch and class.
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

// Fills the rows beyond the selected boxes: with the first of these, or with zeros if there is none. Operators that
// read all rows then read indices that are as valid as the first ones.
__kernel void repeat_first(__global const long* restrict total, __global long* selected) {
  const ulong row = get_global_id(0), count = *total;
  if (row < count) return;
  for (int i = 0; i < 3; ++i) selected[3 * row + i] = count > 0 ? selected[i] : 0;
}
