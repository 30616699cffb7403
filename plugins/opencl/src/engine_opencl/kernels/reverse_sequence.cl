// Reverses the first elements of each sequence; the others are unchanged. [A, B, INNER]; with TIME_FIRST, A is the time
// and B the batch, otherwise the reverse.
__kernel void reverse_sequence(__global const T* restrict x, __global const long* restrict lengths,
                               __global T* restrict y) {
  const ulong k = get_global_id(0), b = get_global_id(1), a = get_global_id(2);
#if TIME_FIRST
  const long length = lengths[b], from_a = (long)a < length ? length - 1 - (long)a : (long)a, from_b = b;
#else
  const long length = lengths[a], from_a = a, from_b = (long)b < length ? length - 1 - (long)b : (long)b;
#endif
  // Lengths beyond the tensor's are invalid, but must not cause reads beyond it.
  const long first = clamp(from_a, 0l, (long)A - 1), second = clamp(from_b, 0l, (long)B - 1);
  y[(a * B + b) * INNER + k] = x[((ulong)first * B + second) * INNER + k];
}
