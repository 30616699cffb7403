// Turns the scores [batch, head, query, key] of an attention into probabilities, in place. Forbidden keys get
// -infinity, as in ONNX; a row without allowed keys gives zeros with BLIND_IS_ZERO.
#define IS_FORBIDDEN(ahead) ((BEFORE >= 0 && (ahead) < -(BEFORE)) || (AFTER >= 0 && (ahead) > (AFTER)))
#if MASK
#define MASK_PARAMETER , __global const MASK_T *restrict mask
#define MASK_AT(key) ((ulong)batch * MASK_B + (ulong)head * MASK_H + (ulong)query * MASK_Q + (ulong)(key) * MASK_K)
#define MASKED(key) ((key) >= MASK_KEYS ? -INFINITY : MASK_BIAS(mask, MASK_AT(min(key, MASK_KEYS - 1))))
#else
#define MASK_PARAMETER
#define MASKED(key) 0.0f
#endif
#if LENGTHS
#define LENGTHS_PARAMETER , __global const long *restrict lengths
#define LENGTH ((int)lengths[batch])
#define PLACE (query + length - QUERIES)
#else
#define LENGTHS_PARAMETER
#define LENGTH KEYS
#define PLACE (query + OFFSET)
#endif
#if SHOWN
#define SHOWN_PARAMETER , __global SHOWN_T *restrict shown
#define SHOW(stage, key, value) \
  if (STAGE == stage) { STORE_SHOWN(row + (key), value) }
#else
#define SHOWN_PARAMETER
#define SHOW(stage, key, value)
#endif
#define PARAMETERS __global float *restrict scores MASK_PARAMETER LENGTHS_PARAMETER SHOWN_PARAMETER
// The item's query and head are dimension QUERY_AXIS of the range and the next one.
#define WHERE                                                                                  \
  const int query = get_global_id(QUERY_AXIS), batch = get_global_id(QUERY_AXIS + 1) / HEADS;     \
  const int head = get_global_id(QUERY_AXIS + 1) % HEADS, length = LENGTH, place = PLACE;      \
  const ulong row = ((ulong)get_global_id(QUERY_AXIS + 1) * QUERIES + query) * KEYS;
// The score of a key with its bias, stored back.
#define COMPLETE(key)                                                                          \
  const float bias = (key >= length || IS_FORBIDDEN(key - place) ? -INFINITY : 0.0f) + MASKED(key); \
  float score = scores[row + key];                                                  \
  SHOW(0, key, score)                                                                          \
  SOFTCAP                                                                                      \
  SHOW(1, key, score)                                                                          \
  score += bias;                                                                               \
  SHOW(2, key, score)                                                                          \
  scores[row + key] = score;

// NaN is the maximum.
inline float larger_of(const float a, const float b) { return isnan(a) || a > b ? a : b; }

inline float share_of(const float share, const int is_blind) {
  return is_blind || (NAN_IS_ZERO && isnan(share)) ? 0.0f : share;
}
