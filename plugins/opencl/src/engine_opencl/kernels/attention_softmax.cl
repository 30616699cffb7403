// Scores of one query and head for all keys become shares, in place: a work group has a row, its items neighbouring keys.
// What forbids a key is added as -infinity, as ONNX has it; a row that may see no key is zeros where BLIND_IS_ZERO.
#define IS_FORBIDDEN(ahead) ((BEFORE >= 0 && (ahead) < -(BEFORE)) || (AFTER >= 0 && (ahead) > (AFTER)))

// The largest of all items' values; NaN is more than any other.
inline float larger_of(const float a, const float b) { return isnan(a) || a > b ? a : b; }

inline float top_of_all(__local float* values, const int lane, const float value) {
  values[lane] = value;
  for (int half_way = LANES / 2; half_way > 0; half_way /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < half_way) values[lane] = larger_of(values[lane], values[lane + half_way]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return values[0];
}

inline float sum_of_all(__local float* values, const int lane, const float value) {
  values[lane] = value;
  for (int half_way = LANES / 2; half_way > 0; half_way /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < half_way) values[lane] += values[lane + half_way];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return values[0];
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void attention_softmax(__global real* restrict scores
#if MASK
                                                                                   , __global const MASK_T* restrict mask
#endif
#if LENGTHS
                                                                                   , __global const long* restrict lengths
#endif
#if SHOWN
                                                                                   , __global real* restrict shown
#endif
) {
  __local float tops[LANES], biases[LANES], sums[LANES];
  const int lane = get_local_id(0), query = get_global_id(1), head = get_global_id(2) % HEADS;
  const int batch = get_global_id(2) / HEADS;
  const ulong row = ((ulong)get_global_id(2) * QUERIES + query) * KEYS;
#if LENGTHS
  const int length = (int)lengths[batch], place = query + length - QUERIES;
#else
  const int length = KEYS, place = query + OFFSET;
#endif
  float top = -INFINITY, top_bias = -INFINITY;
  for (int first = 0; first < KEYS; first += LANES) {
    const int key = first + lane;
    if (key < KEYS) {
      float bias = key >= length || IS_FORBIDDEN(key - place) ? -INFINITY : 0.0f;
#if MASK
      if (key >= MASK_KEYS) bias = -INFINITY;
      else bias += MASK_BIAS(mask, (ulong)batch * MASK_B + (ulong)head * MASK_H + (ulong)query * MASK_Q + (ulong)key * MASK_K);
#endif
      float score = load_real(scores, row + key);
#if SHOWN && STAGE == 0
      store_real(shown, row + key, score);
#endif
      SOFTCAP
#if SHOWN && STAGE == 1
      store_real(shown, row + key, score);
#endif
      score += bias;
#if SHOWN && STAGE == 2
      store_real(shown, row + key, score);
#endif
      store_real(scores, row + key, score);
      top = larger_of(score, top);
      top_bias = larger_of(bias, top_bias);
    }
  }
  top = top_of_all(tops, lane, top);
  const int is_blind = BLIND_IS_ZERO && top_of_all(biases, lane, top_bias) == -INFINITY;
  float sum = 0.0f;
  for (int first = 0; first < KEYS; first += LANES) {
    const int key = first + lane;
    if (key < KEYS) {
      const float e = exp(load_real(scores, row + key) - top);
      store_real(scores, row + key, e);
      sum += e;
    }
  }
  const float factor = 1.0f / sum_of_all(sums, lane, sum);
  for (int first = 0; first < KEYS; first += LANES) {
    const int key = first + lane;
    if (key < KEYS) {
      float share = is_blind ? 0.0f : load_real(scores, row + key) * factor;
      if (NAN_IS_ZERO && isnan(share)) share = 0.0f;
      store_real(scores, row + key, share);
#if SHOWN && STAGE == 3
      store_real(shown, row + key, share);
#endif
    }
  }
}
