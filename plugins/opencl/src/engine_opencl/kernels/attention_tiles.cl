// softmax(Q K' scale + bias) V for GPUs in one kernel, after attention_scores.cl: a group computes ROWS queries of a head
// over tiles of COLS keys. Exponentials are relative to the largest score so far, and earlier sums are scaled when that
// grows (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention, 2022,
// section 3.1). An item has 4 queries and every 16th key, or column of V.
#define ITEMS (4 * ROWS)
#define PITCH (ROWS + 4)
#define OWN_KEYS (COLS / 16)
#define OWN ((E + 15) / 16)

// WIDTH elements of a row, or zeros.
inline void load_row(__global const real* from, const int is_given, float* found) {
  fetch_reals(WIDTH)(from, found);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) found[i] = is_given ? found[i] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_tiles(
    __global const real* restrict q, __global const real* restrict k, __global const real* restrict v,
    __global real* restrict y MASK_PARAMETER LENGTHS_PARAMETER) {
  __local float left[D * PITCH] __attribute__((aligned(16)));
  __local float right[D * (COLS + 1)], values[COLS * E];
  // Scores, then shares: [key][query].
  __local float shares[COLS * PITCH] __attribute__((aligned(16)));
  __local float parts[4 * ROWS], scales[PITCH] __attribute__((aligned(16)));
#if BLIND_IS_ZERO
  __local int is_open[ROWS];
#endif
  const int item = get_local_id(0), lane = item % 16, first_row = item / 16 * 4;
  const int own_row = item % ROWS, part = item / ROWS;
  const uint number = get_group_id(0), tile = number % TILES;
  const int first_query = tile * ROWS, head = number / TILES % HEADS, batch = number / TILES / HEADS;
  const int length = LENGTH;
  q += Q_START + (ulong)batch * Q_B + (ulong)head * Q_H;
  k += K_START + (ulong)batch * K_B + (ulong)(head / SHARED) * K_H;
  v += V_START + (ulong)batch * V_B + (ulong)(head / SHARED) * V_H;
#pragma unroll 8
  for (int n = item; n < ROWS * D / WIDTH; n += ITEMS) {
    const int row = n / (D / WIDTH), d = n % (D / WIDTH) * WIDTH, query = first_query + row;
    float found[WIDTH];
    load_row(q + (ulong)min(query, QUERIES - 1) * Q_R + d, query < QUERIES, found);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) left[(d + i) * PITCH + row] = found[i];
  }
#if BLIND_IS_ZERO
  if (item < ROWS) is_open[item] = 0;
#endif
  float4 sum[OWN];
#pragma unroll
  for (int j = 0; j < OWN; ++j) sum[j] = (float4)(0.0f);
  float top = -INFINITY, total = 0.0f;
  for (int first_key = 0; first_key < KEYS; first_key += COLS) {
    barrier(CLK_LOCAL_MEM_FENCE);
    // Unrolled, so that many loads are in flight.
#pragma unroll 8
    for (int n = item; n < COLS * D / WIDTH; n += ITEMS) {
      const int col = n / (D / WIDTH), d = n % (D / WIDTH) * WIDTH, key = first_key + col;
      float found[WIDTH];
      load_row(k + (ulong)min(key, KEYS - 1) * K_R + d, key < KEYS, found);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) right[(d + i) * (COLS + 1) + col] = found[i];
    }
#pragma unroll 8
    for (int n = item; n < COLS * E / WIDTH; n += ITEMS) {
      const int col = n / (E / WIDTH), e = n % (E / WIDTH) * WIDTH, key = first_key + col;
      float found[WIDTH];
      load_row(v + (ulong)min(key, KEYS - 1) * V_R + e, key < KEYS, found);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) values[col * E + e + i] = found[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 found[OWN_KEYS];
#pragma unroll
    for (int j = 0; j < OWN_KEYS; ++j) found[j] = (float4)(0.0f);
#pragma unroll 4
    for (int d = 0; d < D; ++d) {
      const float4 l = *(__local const float4*)(left + d * PITCH + first_row);
#pragma unroll
      for (int j = 0; j < OWN_KEYS; ++j) found[j] += l * right[d * (COLS + 1) + 16 * j + lane];
    }
#pragma unroll
    for (int j = 0; j < OWN_KEYS; ++j) {
      const int key = first_key + 16 * j + lane;
      const float four[4] = {found[j].s0, found[j].s1, found[j].s2, found[j].s3};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = min(first_query + first_row + i, QUERIES - 1), place = PLACE;
        float score = four[i] * SCALE, bias = -INFINITY;
        if (key < KEYS) {
          bias = (key >= length || IS_FORBIDDEN(key - place) ? -INFINITY : 0.0f) + MASKED(key);
          SOFTCAP
          score += bias;
        } else {
          score = -INFINITY;
        }
#if BLIND_IS_ZERO
        if (bias != -INFINITY) is_open[first_row + i] = 1;
#endif
        shares[(16 * j + lane) * PITCH + first_row + i] = score;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float largest = -INFINITY;
#pragma unroll
    for (int c = 0; c < COLS / 4; ++c)
      largest = larger_of(shares[(part * (COLS / 4) + c) * PITCH + own_row], largest);
    parts[part * ROWS + own_row] = largest;
    barrier(CLK_LOCAL_MEM_FENCE);
    const float before = top;
    for (int other = 0; other < 4; ++other) top = larger_of(parts[other * ROWS + own_row], top);
    const float base = top == -INFINITY ? 0.0f : top, scale = exp(before - base);
    total *= scale;
#pragma unroll
    for (int c = 0; c < COLS / 4; ++c) {
      __local float* share = shares + (part * (COLS / 4) + c) * PITCH + own_row;
      const float e = exp(*share - base);
      *share = e;
      total += e;
    }
    if (part == 0) scales[own_row] = scale;
    barrier(CLK_LOCAL_MEM_FENCE);
    const float4 factors = *(__local const float4*)(scales + first_row);
#pragma unroll
    for (int j = 0; j < OWN; ++j) sum[j] *= factors;
#pragma unroll 4
    for (int c = 0; c < COLS; ++c) {
      const float4 share = *(__local const float4*)(shares + c * PITCH + first_row);
#pragma unroll
      for (int j = 0; j < OWN; ++j) {
        const int e = 16 * j + lane;
        if (E % 16 == 0 || e < E) sum[j] += share * values[c * E + e];
      }
    }
  }
  parts[part * ROWS + own_row] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  y += (ulong)batch * Y_B + (ulong)head * Y_H;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + i, query = first_query + row;
    if (query >= QUERIES) continue;
    float whole = 0.0f;
    for (int other = 0; other < 4; ++other) whole += parts[other * ROWS + row];
    const float factor = 1.0f / whole;
#if BLIND_IS_ZERO
    const int is_zero = !is_open[row] || (NAN_IS_ZERO && (isnan(factor) || whole == 0.0f));
#else
    const int is_zero = NAN_IS_ZERO && (isnan(factor) || whole == 0.0f);
#endif
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
      const int e = 16 * j + lane;
      const float four[4] = {sum[j].s0, sum[j].s1, sum[j].s2, sum[j].s3};
      if (e < E) store_real(y, (ulong)query * Y_R + e, is_zero ? 0.0f : four[i] * factor);
    }
  }
}
