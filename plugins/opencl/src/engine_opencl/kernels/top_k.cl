// An element goes where its rank says: how many come before it. NaN is more than any other; equal ones keep their order.
inline int is_more(const T a, const T b) { return a > b || (isnan(a) && !isnan(b)); }

__kernel void top_k(__global const stored_T* restrict x, __global stored_T* restrict values, __global long* restrict indices) {
  const ulong k = get_global_id(0), outer = get_global_id(2);
  const int own = get_global_id(1);
  x += outer * ((ulong)LENGTH * INNER) + k;
  const T v = load_T(x, (ulong)own * INNER);
  int rank = 0;
  for (int j = 0; j < LENGTH; ++j) {
    const T other = load_T(x, (ulong)j * INNER);
    const int before = LARGEST ? is_more(other, v) : is_more(v, other);
    const int after = LARGEST ? is_more(v, other) : is_more(other, v);
    rank += before || (!after && j < own);
  }
  if (rank >= K) return;
  const ulong at = (outer * K + rank) * INNER + k;
  store_T(values, at, v);
  indices[at] = own;
}
