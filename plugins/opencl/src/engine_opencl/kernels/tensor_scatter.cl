// Writes COUNT steps of an update into a cache [batch, ROWS_EACH, LENGTH, INNER], starting at the batch's index; with
// CIRCULAR, wrapping around at the end.
__kernel void tensor_scatter(__global const T* restrict past, __global const T* restrict update,
#if INDEXED
                             __global const long* restrict starts, __global long* restrict fault, const int slot,
#endif
                             __global T* restrict y) {
  const ulong k = get_global_id(0), row = get_global_id(2);
  const long place = get_global_id(1);
#if INDEXED
  const long start = starts[row / ROWS_EACH];
#else
  const long start = 0;
#endif
  long step = place - start;
#if CIRCULAR
  step = (step % LENGTH + LENGTH) % LENGTH;
#elif INDEXED
  if (k == 0 && place == 0 && COUNT > 0) {
    if (start < 0) *(fault + slot) = start;
    else checked(start + COUNT - 1, LENGTH, fault + slot);
  }
#endif
  const ulong at = (row * LENGTH + (ulong)place) * INNER + k;
  y[at] = step >= 0 && step < COUNT ? update[(row * COUNT + (ulong)step) * INNER + k] : past[at];
}
