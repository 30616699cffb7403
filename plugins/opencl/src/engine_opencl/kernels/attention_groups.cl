// For GPUs: a work group processes a row, its items neighbouring keys.
#define COMBINE(values, value, combined)                                  \
  values[lane] = value;                                                   \
  for (int half_way = LANES / 2; half_way > 0; half_way /= 2) {           \
    barrier(CLK_LOCAL_MEM_FENCE);                                         \
    if (lane < half_way) {                                                \
      const float a = values[lane], b = values[lane + half_way];          \
      values[lane] = combined;                                            \
    }                                                                     \
  }                                                                       \
  barrier(CLK_LOCAL_MEM_FENCE);

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void attention_softmax(PARAMETERS) {
  __local float tops[LANES], biases[LANES], sums[LANES];
  const int lane = get_local_id(0);
  WHERE
  float top = -INFINITY, top_bias = -INFINITY, sum = 0.0f;
  for (int key = lane; key < KEYS; key += LANES) {
    COMPLETE(key)
    top = larger_of(score, top);
    top_bias = larger_of(bias, top_bias);
  }
  COMBINE(tops, top, larger_of(a, b))
  COMBINE(biases, top_bias, larger_of(a, b))
  const int is_blind = BLIND_IS_ZERO && biases[0] == -INFINITY;
  for (int key = lane; key < KEYS; key += LANES) {
    const float e = exp(scores[row + key] - tops[0]);
    scores[row + key] = e;
    sum += e;
  }
  COMBINE(sums, sum, a + b)
  const float factor = 1.0f / sums[0];
  for (int key = lane; key < KEYS; key += LANES) {
    const float share = share_of(scores[row + key] * factor, is_blind);
    scores[row + key] = share;
    SHOW(3, key, share)
  }
}
