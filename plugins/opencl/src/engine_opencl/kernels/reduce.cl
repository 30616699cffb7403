// One number of each line, see lines.cl. The element j of line i is at `kept_at(i) + reduced_at(j)`. A line may be cut
// into PARTS of PER_PART elements, a group each, whose numbers a second launch joins.
LINES_KERNEL void reduce(__global const FROM* restrict x, __global TO* restrict y) {
  __local ACCUMULATOR scratch[GROUP];
  const ulong line = LINE, base = kept_at(line);
  const INDEX begin = (INDEX)get_group_id(1) * PER_PART;
  const INDEX end = min((INDEX)(begin + PER_PART), (INDEX)LENGTH);
  ACCUMULATOR s = START;
  for (INDEX j = begin + LANE; j < end; j += LANES) s = with(s, LOAD(x, base + reduced_at(j)));
  OVER_LANES(s, joined_with, scratch);
  if (HAS_LINE && LANE == 0) {
    const float n = ELEMENTS;
    STORE(y, line * PARTS + get_group_id(1), END);
  }
}
