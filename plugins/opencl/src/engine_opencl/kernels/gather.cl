__kernel void gather(__global const T* restrict x, __global const INDEX* restrict indices, __global T* restrict y
#if CHECK
                     , __global long* restrict fault, const int slot
#endif
) {
  const ulong k = get_global_id(0), i = get_global_id(1), outer = get_global_id(2);
  long index = indices[i];
#if CHECK
  index = checked(index, LENGTH, fault + slot);
  if (index < 0) return;
#else
  index = index < 0 ? index + LENGTH : index;
#endif
  y[(outer * COUNT + i) * INNER + k] = x[(outer * LENGTH + (ulong)index) * INNER + k];
}
