__kernel void running(__global const stored_T* restrict x, __global stored_T* restrict y) {
  const ulong first = get_global_id(1) * ((ulong)LENGTH * INNER) + get_global_id(0);
  T sum = START;
  for (int j = 0; j < LENGTH; ++j) {
    const ulong at = first + (ulong)(REVERSE ? LENGTH - 1 - j : j) * INNER;
    const T v = load_T(x, at);
    const T next = sum STEP v;
    store_T(y, at, EXCLUSIVE ? sum : next);
    sum = next;
  }
}
