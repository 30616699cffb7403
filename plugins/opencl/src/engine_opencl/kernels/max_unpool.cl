// Elements are written at their indices; of several with the same index the last wins. `winner` holds its number plus
// 1, or 0.
__kernel void find_winners(__global const long* restrict indices, __global int* restrict winner,
                           __global long* restrict fault, const int slot) {
  const ulong i = get_global_id(0);
  const long place = checked(indices[i], LENGTH, fault + slot);
  if (place >= 0) atomic_max(winner + place, (int)i + 1);
}

__kernel void max_unpool(__global const T* restrict x, __global const int* restrict winner, __global T* restrict y) {
  const ulong i = get_global_id(0);
  const int from = winner[i];
  y[i] = from ? x[from - 1] : 0;
}
