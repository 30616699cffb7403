__kernel void gather(__global const T* restrict x, __global const INDEX* restrict indices, __global T* restrict y) {
  const ulong k = get_global_id(0), i = get_global_id(1), outer = get_global_id(2);
  long index = indices[i];
  index = index < 0 ? index + LENGTH : index;
  index = clamp(index, 0l, (long)LENGTH - 1);
  y[(outer * COUNT + i) * INNER + k] = x[(outer * LENGTH + (ulong)index) * INNER + k];
}
