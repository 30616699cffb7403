// Reduces each row to one number, see rows.cl. Element j of row i is at `kept_at(i) + reduced_at(j)`. A row may be cut
// into PARTS of PER_PART elements, one group each, whose results a second launch joins.
ROWS_KERNEL void reduce(__global const FROM* restrict x, __global TO* restrict y) {
  SCRATCH(ACCUMULATOR)
  const ulong row = ROW, base = kept_at(row);
  const INDEX begin = (INDEX)get_group_id(1) * PER_PART;
  const INDEX end = min((INDEX)(begin + PER_PART), (INDEX)LENGTH);
  ACCUMULATOR s = START;
  for (INDEX j = begin + LANE; j < end; j += LANES) s = with(s, LOAD(x, base + reduced_at(j)));
  OVER_LANES(s, joined_with, scratch);
  if (HAS_ROW && LANE == 0) {
    const COUNT_TYPE n = ELEMENTS;
    STORE(y, row * PARTS + get_group_id(1), END);
  }
}
