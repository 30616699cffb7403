// The index of the largest or smallest element of each row, see rows.cl, the first or LAST of equal ones; or (HARDMAX)
// 1 there. NaN precedes all others.
typedef struct {
  T value;
  int place;
} Found;

inline int is_equal(const T a, const T b) { return a == b || (is_nan(a) && is_nan(b)); }
inline int is_before(const T a, const T b) { return a ORDER b || (is_nan(a) && !is_nan(b)); }

// The better of two candidates, either of which may be from a lane without elements.
inline Found better(const Found a, const Found b) {
  if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
  if (is_equal(a.value, b.value)) return (a.place < b.place) == !LAST ? a : b;
  return is_before(a.value, b.value) ? a : b;
}

ROWS_KERNEL void extreme(__global const stored_T* restrict x,
#if HARDMAX
                         __global stored_T* restrict y
#else
                         __global long* restrict y
#endif
) {
  SCRATCH(Found)
  const ulong first = BASE;
  Found best;
  best.place = -1;
  best.value = 0;
  for (int k = LANE; k < LENGTH; k += LANES) {
    const T v = load_T(x, first + (ulong)k * INNER);
    if (best.place < 0 || is_before(v, best.value) || (LAST && is_equal(v, best.value))) {
      best.value = v;
      best.place = k;
    }
  }
  OVER_LANES(best, better, scratch);
#if HARDMAX
  for (int k = HAS_ROW ? LANE : LENGTH; k < LENGTH; k += LANES) store_T(y, first + (ulong)k * INNER, k == best.place);
#else
  if (HAS_ROW && LANE == 0) y[ROW] = best.place;
#endif
}
