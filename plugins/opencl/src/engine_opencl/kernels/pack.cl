// A matrix as blocks [LENGTH / WIDTH][K][WIDTH], filled up with zeros: what a product reads step by step lies together.
__kernel void pack(__global const float* restrict x, __global float* restrict y) {
  const int item = get_global_id(0), block = get_global_id(1);
  ulong r = get_global_id(2);
  const ulong target = (r * BLOCKS + block) * ((ulong)K * WIDTH) + item;
  ulong source = 0;
  BATCH
  const int k = item / WIDTH, i = block * WIDTH + item % WIDTH;
  y[target] = i < LENGTH ? x[source + (ulong)i * STEP + (ulong)k * K_STEP] : 0.0f;
}
