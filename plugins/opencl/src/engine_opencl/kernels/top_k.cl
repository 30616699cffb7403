// The first K elements of rows in order. NaN is the largest; equal elements keep their order.
#define NONE INT_MAX
#if LAST
#define STORE(p, i, v) store_T(p, i, v)
#else
#define STORE(p, i, v) (p)[i] = (v)
#endif

inline int is_more(const T a, const T b) { return a > b || (is_nan(a) && !is_nan(b)); }

// Whether element `a` at index `i` comes before `b` at `j`; beyond the end of a row the index is NONE.
inline int comes_before(const T a, const int i, const T b, const int j) {
  if (i == NONE || j == NONE) return i != NONE;
  if (LARGEST ? is_more(a, b) : is_more(b, a)) return 1;
  return !(LARGEST ? is_more(b, a) : is_more(a, b)) && i < j;
}

inline ulong result_of(const ulong row, const int rank) {
  return (row / INNER * K + rank) * INNER + row % INNER;
}

#if RANK
// Short rows: an item counts the elements that come before its own.
__kernel void top_k(__global const stored_T* restrict x, __global stored_T* restrict values,
                    __global long* restrict places) {
  const int own = get_global_id(INNER > 1);
  const ulong inner = INNER > 1 ? get_global_id(0) : 0, outer = get_global_id(2);
  x += outer * ((ulong)LENGTH * INNER) + inner;
  const T v = load_T(x, (ulong)own * INNER);
  int rank = 0;
  for (int j = 0; j < LENGTH; ++j) rank += comes_before(load_T(x, (ulong)j * INNER), j, v, own);
  if (rank >= K) return;
  const ulong at = result_of(outer * INNER + inner, rank);
  store_T(values, at, v);
  places[at] = own;
}
#endif

#if SORT
typedef struct {
  T value;
  int place;
} Entry;

// A group sorts TILE elements (Batcher's bitonic network) of one row, and keeps the RUN that may be among the first K.
// FIRST: reads the row itself, else the elements kept by the previous launch; LAST: writes the result.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void sort_tiles(
#if FIRST
    __global const stored_T* restrict x,
#else
    __global const T* restrict given, __global const int* restrict given_places,
#endif
#if LAST
    __global stored_T* restrict values, __global long* restrict places
#else
    __global T* restrict values, __global int* restrict places
#endif
) {
  __local Entry tile[TILE];
  const int item = get_local_id(0);
  const ulong row = get_group_id(0) / TILES;
  const int part = get_group_id(0) % TILES;
  for (int i = item; i < TILE; i += GROUP) {
    const int k = part * TILE + i;
    Entry e;
    e.value = 0;
    e.place = NONE;
    if (k < COUNT) {
#if FIRST
      e.value = load_T(x, row / INNER * ((ulong)COUNT * INNER) + row % INNER + (ulong)k * INNER);
      e.place = k;
#else
      e.value = given[row * COUNT + k];
      e.place = given_places[row * COUNT + k];
#endif
    }
    tile[i] = e;
  }
  for (int size = 2; size <= TILE; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = item; i < TILE / 2; i += GROUP) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const Entry a = tile[low], b = tile[high];
        if (comes_before(b.value, b.place, a.value, a.place) == ((low & size) == 0)) {
          tile[low] = b;
          tile[high] = a;
        }
      }
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = item; i < RUN; i += GROUP) {
    const ulong at = LAST ? result_of(row, i) : (row * TILES + part) * RUN + i;
    STORE(values, at, tile[i].value);
    places[at] = tile[i].place;
  }
}
#endif

#if MERGE
// Merges each pair of neighbouring runs of RUN sorted elements into one of MERGED: an item finds the rank of its
// element in the other run. The last of an odd number of runs has no partner.
__kernel void merge_runs(__global const T* restrict given, __global const int* restrict given_places,
#if LAST
                         __global stored_T* restrict values, __global long* restrict places
#else
                         __global T* restrict values, __global int* restrict places
#endif
) {
  const ulong item = get_global_id(0), row = item / ((ulong)RUNS * RUN);
  const int run = item / RUN % RUNS, k = item % RUN;
  const T v = given[item];
  const int place = given_places[item];
  const int is_alone = (run ^ 1) >= RUNS;
  const ulong other = (row * RUNS + (run ^ 1)) * RUN;
  int low = 0, high = is_alone ? 0 : RUN;
  while (low < high) {
    const int middle = (low + high) / 2;
    const T w = given[other + middle];
    const int at = given_places[other + middle];
    // Of the elements beyond the row, which are all equal, those of the earlier run come first.
    if (run & 1 ? !comes_before(v, place, w, at) : comes_before(w, at, v, place)) low = middle + 1;
    else high = middle;
  }
  for (int rank = k + low; rank < MERGED; rank += RUN) {
    const ulong to = LAST ? result_of(row, rank) : (row * (RUNS / 2 + RUNS % 2) + run / 2) * MERGED + rank;
    STORE(values, to, v);
    places[to] = rank == k + low ? place : NONE;
    if (!is_alone) break;
  }
}
#endif
