// Running sums or products of rows, see rows.cl: a parallel scan over the lanes of a row, which have neighbouring
// elements (Hillis and Steele, Data parallel algorithms, 1986), carrying the last result on.
ROWS_KERNEL void running(__global const stored_T* restrict x, __global stored_T* restrict y) {
  const ulong first = BASE;
  T carried = START;
  SCRATCH(T)
  for (int begin = 0; begin < LENGTH; begin += LANES) {
    const int k = begin + LANE;
    const ulong at = first + (ulong)(REVERSE ? LENGTH - 1 - k : k) * INNER;
    const T v = k < LENGTH ? load_T(x, at) : START;
    T before = carried, next = v;
#if LANES > 1
    scratch[ITEM] = v;
    for (int n = 1; n < LANES; n *= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      const T other = LANE >= n ? scratch[ITEM - n * LANE_STEP] : START;
      barrier(CLK_LOCAL_MEM_FENCE);
      next = other STEP next;
      scratch[ITEM] = next;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (LANE > 0) before = carried STEP scratch[ITEM - LANE_STEP];
    const T last = scratch[ITEM + (LANES - 1 - LANE) * LANE_STEP];
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    const T last = v;
#endif
    if (HAS_ROW && k < LENGTH) store_T(y, at, EXCLUSIVE ? before : carried STEP next);
    carried = carried STEP last;
  }
}
