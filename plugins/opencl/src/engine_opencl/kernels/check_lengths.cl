// Reports a length that is not in 0..STEPS.
__kernel void check_lengths(__global const T* restrict lengths, __global long* restrict fault, const int slot) {
  const long length = lengths[get_global_id(0)];
  if (length < 0 || length > STEPS) *(fault + slot) = length < 0 ? length : length + 1;
}
