// For CPUs: an item processes a row, four keys at a time.
#define WHOLE (KEYS / 4 * 4)
#define load4(at) vload4(0, scores + (at))
#define store4(at, value) vstore4((value), 0, scores + (at))

__kernel void attention_softmax(PARAMETERS) {
  WHERE
  float top = -INFINITY, top_bias = 0.0f;
#if IS_PLAIN
  float4 tops = -INFINITY;
  for (int key = 0; key < WHOLE; key += 4) {
    const float4 s = load4(row + key);
    tops = select(tops, s, isnan(s) | (s > tops));
  }
  top = larger_of(larger_of(tops.x, tops.y), larger_of(tops.z, tops.w));
  for (int key = WHOLE; key < KEYS; ++key) top = larger_of(scores[row + key], top);
#else
  top_bias = -INFINITY;
  for (int key = 0; key < KEYS; ++key) {
    COMPLETE(key)
    top = larger_of(score, top);
    top_bias = larger_of(bias, top_bias);
  }
#endif
  const int is_blind = BLIND_IS_ZERO && top_bias == -INFINITY;
  float4 sums = 0.0f;
  for (int key = 0; key < WHOLE; key += 4) {
    const float4 e = exp(load4(row + key) - top);
    store4(row + key, e);
    sums += e;
  }
  float sum = sums.x + sums.y + sums.z + sums.w;
  for (int key = WHOLE; key < KEYS; ++key) {
    const float e = exp(scores[row + key] - top);
    scores[row + key] = e;
    sum += e;
  }
  const float factor = 1.0f / sum;
#if IS_PLAIN && !NAN_IS_ZERO
  for (int key = 0; key < WHOLE; key += 4) store4(row + key, load4(row + key) * factor);
  for (int key = WHOLE; key < KEYS; ++key) scores[row + key] = scores[row + key] * factor;
#else
  for (int key = 0; key < KEYS; ++key) {
    const float share = share_of(scores[row + key] * factor, is_blind);
    scores[row + key] = share;
    SHOW(3, key, share)
  }
#endif
}
