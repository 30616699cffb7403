// Rotates a pair of elements of one head by an angle whose cosine and sine are [batch, ROWS, HALF], [1, ROWS, HALF] if
// SHARES_TABLES, or [TABLE, HALF] by positions. Pairs are neighbours, or HALF apart.
__kernel void rotary(__global const real* restrict x, __global const real* restrict cosines,
                     __global const real* restrict sines, __global real* restrict y
#if POSITIONS
                     , __global const long* restrict positions, __global long* restrict fault, const int slot
#endif
) {
  const int pair = get_global_id(0), row = get_global_id(1);
  const int batch = get_global_id(2) / HEADS, head = get_global_id(2) % HEADS;
  long place = (SHARES_TABLES ? 0 : (long)batch * ROWS) + row;
#if POSITIONS
  place = checked(positions[place], TABLE, fault + slot);
  if (place < 0) return;
#endif
  const ulong angle = (ulong)place * HALF + pair;
  const ulong start = (ulong)batch * BATCH_STEP + (ulong)head * HEAD_STEP + (ulong)row * ROW_STEP;
  const ulong first = start + (IS_INTERLEAVED ? 2 * pair : pair), second = first + (IS_INTERLEAVED ? 1 : HALF);
  const float a = load_real(x, first), b = load_real(x, second);
  const float cosine = load_real(cosines, angle), sine = load_real(sines, angle);
  store_real(y, first, a * cosine - b * sine);
  store_real(y, second, a * sine + b * cosine);
}
