// Rows of LENGTH elements, INNER apart, each processed as a whole: a work group has ROWS of them, with LANES items for
// each, both powers of two. Neighbouring items are lanes of a row, or (ACROSS) the same lane of neighbouring rows,
// whichever are adjacent in memory. A lane's elements are LANES apart; it processes up to KEPT of them at a time,
// CHUNKS times.
#define GROUP (LANES * ROWS)
#define ITEM ((int)get_local_id(0))
// CPU compilers vectorize over items only if they can see that these read neighbouring elements, so the cases differ.
#if LANES == 1
#define LANE 0
#define OWN_ROW get_global_id(0)
#define LANE_STEP 1
#elif ROWS == 1
#define LANE ITEM
#define OWN_ROW get_group_id(0)
#define LANE_STEP 1
#elif ACROSS
#define LANE (ITEM / ROWS)
#define OWN_ROW (get_group_id(0) * (ulong)ROWS + ITEM % ROWS)
#define LANE_STEP ROWS
#else
#define LANE (ITEM % LANES)
#define OWN_ROW (get_group_id(0) * (ulong)ROWS + ITEM / LANES)
#define LANE_STEP 1
#endif
// Items of the last group without a row read the last one, since all items must reach barriers. BASE is the start of
// the row. BY_OUTER: dimension 0 counts the INNER adjacent rows, dimension 1 the sets of them.
#if BY_OUTER
#define HAS_ROW (INNER % ROWS == 0 || OWN_ROW < INNER)
#define COLUMN (HAS_ROW ? OWN_ROW : INNER - 1ul)
#define ROW (get_global_id(1) * (ulong)INNER + COLUMN)
#define BASE (get_global_id(1) * ((ulong)LENGTH * INNER) + COLUMN)
#else
#define HAS_ROW (COUNT % ROWS == 0 || OWN_ROW < COUNT)
#define ROW (HAS_ROW ? OWN_ROW : COUNT - 1ul)
#define BASE (ROW / INNER * ((ulong)LENGTH * INNER) + ROW % INNER)
#endif
#define INSIDE(k) (LENGTH % (LANES * KEPT) == 0 || (k) < LENGTH)
#define ROWS_KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
// Few kept elements should stay in registers, which cannot be indexed.
#if KEPT <= 16
#define KEPT_LOOP _Pragma("unroll")
#else
#define KEPT_LOOP
#endif

// Local memory with an element for each item, through which lanes of a row join their results.
#if LANES > 1
#define SCRATCH(type) __local type scratch[GROUP];
#else
#define SCRATCH(type)
#endif

// Joins the `v` of all lanes of a row in a fixed order; all items of the group must call this.
#if LANES > 1 && LANES <= 16
#define OVER_LANES(v, JOIN, scratch)                                                        \
  do {                                                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                                           \
    scratch[ITEM] = v;                                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                                           \
    v = scratch[ITEM - LANE * LANE_STEP];                                                   \
    for (int n = 1; n < LANES; ++n) v = JOIN(v, scratch[ITEM + (n - LANE) * LANE_STEP]);    \
  } while (0)
#elif LANES > 1
#define OVER_LANES(v, JOIN, scratch)                                                    \
  do {                                                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                       \
    scratch[ITEM] = v;                                                                  \
    for (int n = LANES / 2; n > 0; n /= 2) {                                            \
      barrier(CLK_LOCAL_MEM_FENCE);                                                     \
      if (LANE < n) scratch[ITEM] = JOIN(scratch[ITEM], scratch[ITEM + n * LANE_STEP]); \
    }                                                                                   \
    barrier(CLK_LOCAL_MEM_FENCE);                                                       \
    v = scratch[ITEM - LANE * LANE_STEP];                                               \
  } while (0)
#else
#define OVER_LANES(v, JOIN, scratch)
#endif
#define ADD(a, b) ((a) + (b))
