// The place of the largest or smallest element along an axis, the first or LAST of equal ones; or (HARDMAX) 1 there.
__kernel void extreme(__global const stored_T* restrict x,
#if HARDMAX
                      __global stored_T* restrict y) {
#else
                      __global long* restrict y) {
#endif
  const ulong k = get_global_id(0), outer = get_global_id(1);
  x += outer * ((ulong)LENGTH * INNER) + k;
  T best = load_T(x, 0);
  int found = 0;
  for (int j = 1; j < LENGTH; ++j) {
    const T v = load_T(x, (ulong)j * INNER);
#if LAST
    const int is_better = isnan(v) || v ORDER best || v == best;
#else
    const int is_better = v ORDER best || (isnan(v) && !isnan(best));
#endif
    best = is_better ? v : best;
    found = is_better ? j : found;
  }
#if HARDMAX
  for (int j = 0; j < LENGTH; ++j) store_T(y, (outer * LENGTH + j) * INNER + k, j == found);
#else
  y[outer * INNER + k] = found;
#endif
}
