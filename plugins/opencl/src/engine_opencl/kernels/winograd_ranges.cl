// The largest magnitude at each position of the input of a convolution, in each of PARTS parts of the channels of a
// group; infinite if one exceeds LARGEST or is not a number. Neighbouring items process neighbouring positions.
__kernel void winograd_ranges(__global const float* restrict x, __global float* restrict ranges) {
  const int position = get_global_id(0), part = get_global_id(1);
  const int first = part % PARTS * PART_CHANNELS, end = min(first + PART_CHANNELS, GROUP_C);
  x += ((ulong)(position / (IH * IW)) * C + part / PARTS * GROUP_C) * (IH * IW) + position % (IH * IW);
  float most = 0.0f;
  for (int c = first; c < end; ++c) {
    const float value = fabs(x[(ulong)c * (IH * IW)]);
    most = value <= LARGEST ? fmax(most, value) : INFINITY;
  }
  ranges[(ulong)part * POSITIONS + position] = most;
}
