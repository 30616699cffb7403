// attention_few_f32: softmax(scale * Q K^T + mask) V for few queries, which reads K and V at the speed of memory where
// it can. attention_join_f32: a phase after it, which joins the parts of a row.
//
// Operands as for attention_f32 (attention.hpp); K and V may be in any format. The keys that a query attends to are
// divided into parts of equal length. A unit of work is a query, a part, and the heads of Q that share a head of K and
// V; the units of all heads follow each other, so that a worker reads whole rows of a cache, in which heads lie side by
// side. A row of one part is written to Y; otherwise, each part leaves its sum, and the maximum and the sum of its
// numerators, in a temporary.
#include "kernels/attention_rows.hpp"
#include "simd/denormals.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Rows of K or V as f32, in place or widened.
struct Rows {
  const float* first;
  std::int64_t step;
};

// The address of row i of kLanes rows, in a form that an addressing mode covers; `steps` has 1, 3, 5 and 7 steps.
ENGINE_INLINE const float* row_at(int i, const char* first, const char* eighth, const std::int64_t (&steps)[4]) {
  const char* base = i < 8 ? first : eighth;
  switch (i % 8) {
    case 0:
      return floats(base);
    case 2:
      return floats(base + 2 * steps[0]);
    case 4:
      return floats(base + 4 * steps[0]);
    case 6:
      return floats(base + 2 * steps[1]);
    default:
      return floats(base + steps[i % 8 / 2]);
  }
}

// The sums of kLanes vectors are made in two steps, so that a caller need not hold all of them: kKeysNear vectors
// become kNearVectors, and those of kLanes / kKeysNear such groups become the sums.
constexpr int kKeysNear = 4;
#if defined(__AVX512F__)
constexpr int kNearVectors = 1;
#else
constexpr int kNearVectors = kKeysNear;
#endif
constexpr int kSumVectors = kLanes / kKeysNear * kNearVectors;

ENGINE_INLINE void sum_near(const Vec (&vectors)[kKeysNear], Vec* sums) {
#if defined(__AVX512F__)
  // Each level adds two halves of a vector, and puts the sums of two vectors side by side. The masks take all lanes;
  // they are used since GCC warns about the intrinsics without masks.
  constexpr auto kAll = static_cast<__mmask16>(-1);
  constexpr auto kPairs = static_cast<__mmask8>(-1);
  __m512 pairs[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = (__m512)vectors[2 * i], b = (__m512)vectors[2 * i + 1];
    pairs[i] = _mm512_maskz_unpacklo_ps(kAll, a, b) + _mm512_maskz_unpackhi_ps(kAll, a, b);
  }
  const __m512d a = (__m512d)pairs[0], b = (__m512d)pairs[1];
  sums[0] = (Vec)((__m512)_mm512_maskz_unpacklo_pd(kPairs, a, b) + (__m512)_mm512_maskz_unpackhi_pd(kPairs, a, b));
#else
  for (int i = 0; i < kKeysNear; ++i) sums[i] = vectors[i];
#endif
}

// Lane i of the result is the sum of the lanes of vector i.
ENGINE_INLINE Vec joined_sums(Vec (&sums)[kSumVectors]) {
#if defined(__AVX512F__)
  constexpr auto kAll = static_cast<__mmask16>(-1);
  __m512 octets[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = (__m512)sums[2 * i], b = (__m512)sums[2 * i + 1];
    octets[i] = _mm512_maskz_shuffle_f32x4(kAll, a, b, 0x88) + _mm512_maskz_shuffle_f32x4(kAll, a, b, 0xdd);
  }
  return (Vec)(_mm512_maskz_shuffle_f32x4(kAll, octets[0], octets[1], 0x88) +
               _mm512_maskz_shuffle_f32x4(kAll, octets[0], octets[1], 0xdd));
#else
  transpose_square(sums);
  Vec total = zero();
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) total += sums[i];
  return total;
#endif
}

ENGINE_INLINE Vec sums_of(const Vec (&vectors)[kLanes]) {
  Vec sums[kSumVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes / kKeysNear; ++i) {
    const Vec near[kKeysNear] = {vectors[4 * i], vectors[4 * i + 1], vectors[4 * i + 2], vectors[4 * i + 3]};
    sum_near(near, sums + i * kNearVectors);
  }
  return joined_sums(sums);
}

// scores[i] = row i of K times the query, for kLanes keys; the elements from `d` on are left.
ENGINE_INLINE Vec whole_scores(const float* query, const Rows& k, std::int64_t size, std::int64_t& d) {
  Vec acc[kLanes], sums[kLanes];  // apart, so that the former stay in registers
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) acc[i] = zero();
  const std::int64_t bytes = k.step * 4;
  std::int64_t steps[4] = {bytes, 3 * bytes, 5 * bytes, 7 * bytes};
  const char* first = reinterpret_cast<const char*>(k.first);
  const char* eighth = first + 8 * bytes;
  for (; d + kLanes <= size; d += kLanes, first += kVectorBytes, eighth += kVectorBytes) {
    ENGINE_FORGET(first);
    ENGINE_FORGET(eighth);
    for (std::int64_t& step : steps) ENGINE_FORGET(step);
    const Vec value = load(query + d);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) acc[i] = fma(value, load(row_at(i, first, eighth, steps)), acc[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sums[i] = acc[i];
  return sums_of(sums);
}

// The same for the first `count` of kLanes keys.
ENGINE_NOINLINE Vec some_scores(const float* query, const Rows& k, std::int64_t size, std::int64_t count,
                                std::int64_t& d) {
  Vec sums[kLanes] = {};
  for (; d + kLanes <= size; d += kLanes) {
    const Vec value = load(query + d);
    for (std::int64_t i = 0; i < count; ++i) sums[i] = fma(value, load(k.first + i * k.step + d), sums[i]);
  }
  return sums_of(sums);
}

// scores[i] = row i of K times the query, for `count` keys, at most kLanes.
ENGINE_INLINE Vec row_scores(const AttentionArgs& args, const float* query, const Rows& k, std::int64_t count) {
  std::int64_t d = 0;
  const Vec total = count == kLanes ? whole_scores(query, k, args.size, d) : some_scores(query, k, args.size, count, d);
  if (d == args.size) return total;
  float lanes[kLanes];
  store(lanes, total);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t e = d; e < args.size; ++e) lanes[i] += query[e] * k.first[i * k.step + e];
  return load(lanes);
}

// y[d..) = (y[d..) or 0) + sum over keys of p[key] * v[key][d..) for kCount vectors.
template <int kCount>
ENGINE_INLINE void row_values(const float* p, const float* v, std::int64_t v_row, std::int64_t keys, bool is_sum,
                              float* y) {
  Vec even[kCount] = {}, odd[kCount] = {};
  if (is_sum)
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) even[i] = load(y + i * kLanes);
  std::int64_t key = 0;
  for (; key + 2 <= keys; key += 2)
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      even[i] = fma(broadcast(p[key]), load(v + key * v_row + i * kLanes), even[i]);
      odd[i] = fma(broadcast(p[key + 1]), load(v + (key + 1) * v_row + i * kLanes), odd[i]);
    }
  if (key < keys)
    for (int i = 0; i < kCount; ++i) even[i] = fma(broadcast(p[key]), load(v + key * v_row + i * kLanes), even[i]);
  for (int i = 0; i < kCount; ++i) store(y + i * kLanes, even[i] + odd[i]);
}

// Adds the values of the keys [first, first + keys), weighted by p, to y; the first values are assigned.
void add_values(const Task& task, const Rows& values, std::int64_t first, std::int64_t keys, float* y) {
  const AttentionArgs& args = *task.args;
  const std::int64_t row = values.step;
  const float *v = values.first, *p = task.scores + first;
  const bool is_sum = first > 0;
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= args.value_size; d += 4 * kLanes) row_values<4>(p, v + d, row, keys, is_sum, y + d);
  for (; d + kLanes <= args.value_size; d += kLanes) row_values<1>(p, v + d, row, keys, is_sum, y + d);
  for (; d < args.value_size; ++d) {
    float sum = is_sum ? y[d] : 0.0f;
    for (std::int64_t key = 0; key < keys; ++key) sum += p[key] * v[key * row + d];
    y[d] = sum;
  }
}

// -- rows that are read once for several heads, in the order of memory -----------------------------------------------

// Heads whose sums for a few keys stay in registers.
constexpr int kHeadsAtOnce = kLanes == 16 ? 4 : 2;
// Keys whose values are added to a result while it is in registers: few, so that memory is read nearly in its order.
constexpr std::int64_t kValuesNear = 8;

// kLanes elements of a row of K or V from element d. The codes of i8 are without their scale.
template <CacheFormat kFormat>
ENGINE_INLINE Vec row_elements(const char* row, std::int64_t d) {
  if constexpr (kFormat == CacheFormat::kF32) return load(floats(row) + d);
  if constexpr (kFormat == CacheFormat::kBf16) return load(reinterpret_cast<const Bf16*>(row) + d);
#if defined(__AVX512F__) || defined(__F16C__) || defined(__aarch64__)
  if constexpr (kFormat == CacheFormat::kF16) return load(reinterpret_cast<const F16*>(row) + d);
#endif
  return load_signed_bytes(reinterpret_cast<const std::int8_t*>(row) + d);
}

// The rows of some keys or values: the first, the bytes from one to the next, and the elements of each.
struct Block {
  const char* first;
  std::int64_t bytes, size;
};

// Prefetches the row that is read kRowsAhead keys later. Rows are prefetched one by one, since many prefetches in a row
// wait for each other; beyond the last row, they have no effect.
template <CacheFormat kFormat>
ENGINE_INLINE void prefetch_row(const char* row, const Block& block) {
  constexpr std::int64_t kRowsAhead = 32;
  const std::int64_t row_bytes = cache_row_bytes(kFormat, block.size);
  for (std::int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + kRowsAhead * block.bytes + at, 0, 2);
}

ENGINE_INLINE float row_scale(const char* row, std::int64_t size) {
  float scale;
  std::memcpy(&scale, row + size, sizeof scale);
  return scale;
}

// The first step of the sums of kKeysNear rows of K times the queries of several heads; those of head h are kSumVectors
// behind those of head h - 1. The size is a multiple of kLanes.
template <CacheFormat kFormat, int kHeads>
ENGINE_INLINE void near_scores(const float* const* queries, const Block& k, Vec* sums) {
  Vec acc[kHeads][kKeysNear] = {};
  const char *first = k.first, *second = first + k.bytes, *third = second + k.bytes, *fourth = third + k.bytes;
  prefetch_row<kFormat>(first, k);
  prefetch_row<kFormat>(second, k);
  prefetch_row<kFormat>(third, k);
  prefetch_row<kFormat>(fourth, k);
  for (std::int64_t d = 0; d < k.size; d += kLanes) {
    Vec query[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) query[h] = load(queries[h] + d);
    const Vec elements[kKeysNear] = {row_elements<kFormat>(first, d), row_elements<kFormat>(second, d),
                                     row_elements<kFormat>(third, d), row_elements<kFormat>(fourth, d)};
#pragma GCC unroll 4
    for (int i = 0; i < kKeysNear; ++i)
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) acc[h][i] = fma(query[h], elements[i], acc[h][i]);
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) sum_near(acc[h], sums + h * kSumVectors);
}

// y[h][d..) = (y[h][d..) or 0) + sum over `keys` of weights[h][key] * v[key][d..), for kVectors vectors.
template <CacheFormat kFormat, int kHeads, int kVectors>
ENGINE_INLINE void vector_values(const float* const* weights, const Block& v, std::int64_t keys, std::int64_t d,
                                 bool is_sum, float* const* y) {
  Vec acc[kHeads][kVectors] = {};
  if (is_sum)
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) acc[h][i] = load(y[h] + d + i * kLanes);
  const char* row = v.first;
  for (std::int64_t key = 0; key < keys; ++key, row += v.bytes) {
    if (d == 0) prefetch_row<kFormat>(row, v);
    Vec elements[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) elements[i] = row_elements<kFormat>(row, d + i * kLanes);
    const float scale = kFormat == CacheFormat::kInt8 ? row_scale(row, v.size) : 1.0f;
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const float weight = weights[h][key];
      const Vec factor = broadcast(kFormat == CacheFormat::kInt8 ? weight * scale : weight);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) acc[h][i] = fma(factor, elements[i], acc[h][i]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store(y[h] + d + i * kLanes, acc[h][i]);
}

template <CacheFormat kFormat, int kHeads>
ENGINE_INLINE void near_values(const float* const* weights, const Block& v, std::int64_t keys, bool is_sum,
                               float* const* y) {
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= v.size; d += 4 * kLanes) vector_values<kFormat, kHeads, 4>(weights, v, keys, d, is_sum, y);
  for (; d < v.size; d += kLanes) vector_values<kFormat, kHeads, 1>(weights, v, keys, d, is_sum, y);
}

// One query of one head, and some of its keys, whose scores form a row.
struct Row {
  Task task;
  AttentionPart* part;  // of several; null: there is one
  float* y;
  Vec maximum;
  bool is_seen;
  float factor;  // of the values; 0: the result is written
};

// Keeps the scores of at most kLanes of the `keys`, from `at` on.
ENGINE_INLINE void keep_scores(Row& row, Vec score, std::int64_t at, std::int64_t keys) {
  const Task& task = row.task;
  const AttentionArgs& args = *task.args;
  const std::int64_t key = task.key_begin + at, count = min64(kLanes, keys - at);
  if (args.softcap != 0.0f) score = args.softcap * tanh(score / args.softcap);
  float lanes[kLanes];
  if (task.mask) {
    const Vec bias = bias_row(args, task.mask, task.first * args.mask_view.query, key, count);
    store(lanes, bias);
    for (std::int64_t l = 0; l < count; ++l) row.is_seen = row.is_seen || lanes[l] != -kInf;
    score += bias;
  }
  if (count < kLanes) {
    store(lanes, score);
    for (std::int64_t l = count; l < kLanes; ++l) lanes[l] = -kInf;
    score = load(lanes);
  }
  row.maximum = max(score, row.maximum);
  store(task.scores + at, score);
}

// The factor of a row's values: the reciprocal of the sum of numerators. 0 if zeros are written.
float factor_of(const Task& task, bool is_seen, float total, float* y) {
  const bool is_zero = is_zero_row(*task.args, is_seen, total);
  if (is_zero) write_zero_row(task, y);
  return is_zero ? 0.0f : 1.0f / total;
}

// Converts the scores of a row to the numerators of their probabilities.
void exponentiate_row(Row& row, std::int64_t keys) {
  const Task& task = row.task;
  float largest = -kInf;
  for (int l = 0; l < kLanes; ++l) largest = row.maximum[l] > largest ? row.maximum[l] : largest;
  const Vec reference = broadcast(largest == -kInf ? 0.0f : largest);
  Vec sum = zero();
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    const Vec numerator = exp_below_zero(load(task.scores + i) - reference);
    store(task.scores + i, numerator);
    sum += numerator;
  }
  const float total = reduce_add(sum);
  if (row.part == nullptr) {
    row.factor = factor_of(task, row.is_seen, total, row.y);
  } else {
    *row.part = {largest, total, row.is_seen};
    row.factor = 1.0f;
  }
}

// Whether rows of this format and size are read by score_rows and add_rows.
ENGINE_INLINE bool is_read_once([[maybe_unused]] CacheFormat format, std::int64_t size) {
#if !defined(__AVX512F__) && !defined(__F16C__) && !defined(__aarch64__)
  if (format == CacheFormat::kF16) return false;
#endif
  return size % kLanes == 0;
}

ENGINE_INLINE Block key_block(const Task& task, std::int64_t at) {
  const AttentionArgs& args = *task.args;
  return {key_row(task, task.key_begin + at), args.k.row * cache_element_bytes(args.k_format), args.size};
}
ENGINE_INLINE Block value_block(const Task& task, std::int64_t at) {
  const AttentionArgs& args = *task.args;
  return {value_row(task, task.key_begin + at), args.v.row * cache_element_bytes(args.v_format), args.value_size};
}

// How many of `left` heads are computed at once.
ENGINE_INLINE std::int64_t heads_at_once(std::int64_t left) {
  return kHeadsAtOnce == 4 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

// Keeps the scores of kLanes keys from `at` on, for all rows.
template <CacheFormat kFormat>
ENGINE_NOINLINE void score_rows(Row* rows, std::int64_t count, std::int64_t at, std::int64_t keys) {
  const std::int64_t shared = rows[0].task.args->shared_heads;
  Vec sums[kMaxRowsTogether][kSumVectors];
  for (std::int64_t near = 0; near < kLanes; near += kKeysNear)
    for (std::int64_t group = 0; group < count; group += shared) {
      const Block k = key_block(rows[group].task, at + near);
      for (std::int64_t r = group; r < group + shared;) {
        const std::int64_t heads = heads_at_once(group + shared - r);
        const float* queries[kHeadsAtOnce];
        for (std::int64_t h = 0; h < heads; ++h) queries[h] = rows[r + h].task.queries;
        Vec* to = sums[r] + near / kKeysNear * kNearVectors;
        if (heads == 4)
          near_scores<kFormat, kHeadsAtOnce>(queries, k, to);
        else if (heads == 2)
          near_scores<kFormat, 2>(queries, k, to);
        else
          near_scores<kFormat, 1>(queries, k, to);
        r += heads;
      }
    }
  for (std::int64_t group = 0; group < count; group += shared) {
    Vec scale = zero();
    if (kFormat == CacheFormat::kInt8) {
      const Block k = key_block(rows[group].task, at);
      float scales[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) scales[i] = row_scale(k.first + i * k.bytes, k.size);
      scale = load(scales);
    }
    for (std::int64_t r = group; r < group + shared; ++r) {
      const Vec score = joined_sums(sums[r]);
      keep_scores(rows[r], kFormat == CacheFormat::kInt8 ? score * scale : score, at, keys);
    }
  }
}

// Adds the values of the keys [at, at + keys), for all rows; the first values are assigned, also if there are none.
template <CacheFormat kFormat>
ENGINE_NOINLINE void add_rows(const Row* rows, std::int64_t count, std::int64_t at, std::int64_t keys) {
  const std::int64_t shared = rows[0].task.args->shared_heads;
  for (std::int64_t near = 0; near == 0 || near < keys; near += kValuesNear)
    for (std::int64_t group = 0; group < count; group += shared) {
      const Block v = value_block(rows[group].task, at + near);
      for (std::int64_t r = group; r < group + shared;) {
        const std::int64_t heads = heads_at_once(group + shared - r);
        const float* weights[kHeadsAtOnce];
        float* y[kHeadsAtOnce];
        for (std::int64_t h = 0; h < heads; ++h) {
          weights[h] = rows[r + h].task.scores + at + near;
          y[h] = rows[r + h].y;
        }
        const std::int64_t few = min64(kValuesNear, keys - near);
        const bool is_sum = at + near > 0;
        if (heads == 4)
          near_values<kFormat, kHeadsAtOnce>(weights, v, few, is_sum, y);
        else if (heads == 2)
          near_values<kFormat, 2>(weights, v, few, is_sum, y);
        else
          near_values<kFormat, 1>(weights, v, few, is_sum, y);
        r += heads;
      }
    }
}

using ScoreRows = void (*)(Row*, std::int64_t, std::int64_t, std::int64_t);
using AddRows = void (*)(const Row*, std::int64_t, std::int64_t, std::int64_t);

ENGINE_INLINE ScoreRows score_rows_of(CacheFormat format) {
  return format == CacheFormat::kF32    ? score_rows<CacheFormat::kF32>
         : format == CacheFormat::kBf16 ? score_rows<CacheFormat::kBf16>
         : format == CacheFormat::kF16  ? score_rows<CacheFormat::kF16>
                                        : score_rows<CacheFormat::kInt8>;
}
ENGINE_INLINE AddRows add_rows_of(CacheFormat format) {
  return format == CacheFormat::kF32    ? add_rows<CacheFormat::kF32>
         : format == CacheFormat::kBf16 ? add_rows<CacheFormat::kBf16>
         : format == CacheFormat::kF16  ? add_rows<CacheFormat::kF16>
                                        : add_rows<CacheFormat::kInt8>;
}

// Prefetches the keys or values kAhead rows after those that are read next, for all heads of a row at once.
ENGINE_INLINE void prefetch_rows(const Row* rows, std::int64_t count, bool is_keys, std::int64_t at, std::int64_t keys,
                                 std::int64_t end) {
  constexpr std::int64_t kAhead = 2 * kLanes;
  const AttentionArgs& args = *rows[0].task.args;
  const CacheFormat format = is_keys ? args.k_format : args.v_format;
  const AttentionView& view = is_keys ? args.k : args.v;
  const std::int64_t row = cache_row_bytes(format, is_keys ? args.size : args.value_size);
  // Heads that lie side by side are one piece of memory, of which each line is prefetched once.
  const bool is_dense = view.head * cache_element_bytes(format) == row;
  const std::int64_t pieces = is_dense ? 1 : count / args.shared_heads;
  const std::int64_t bytes = is_dense ? row * (count / args.shared_heads) : row;
  const std::int64_t begin = max64(0, at + kAhead), last = min64(end, at + kAhead + keys);
  for (std::int64_t key = begin; key < last; ++key)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const Task& task = rows[piece * args.shared_heads].task;
      const char* from = is_keys ? key_row(task, task.key_begin + key) : value_row(task, task.key_begin + key);
      for (std::int64_t at_byte = 0; at_byte < bytes; at_byte += 64) __builtin_prefetch(from + at_byte, 0, 2);
    }
}

// Rows [at, at + count) of the keys or values of a task, for which `widened` has room.
ENGINE_INLINE Rows read_rows(const Task& task, bool is_keys, std::int64_t at, std::int64_t count, float* widened) {
  const AttentionArgs& args = *task.args;
  const CacheFormat format = is_keys ? args.k_format : args.v_format;
  const char* from = is_keys ? key_row(task, task.key_begin + at) : value_row(task, task.key_begin + at);
  const std::int64_t step = is_keys ? args.k.row : args.v.row;
  if (format == CacheFormat::kF32) return {floats(from), step};
  const std::int64_t size = is_keys ? args.size : args.value_size, bytes = step * cache_element_bytes(format);
  for (std::int64_t i = 0; i < count; ++i) widen_row(format, from + i * bytes, size, widened + i * size);
  return {widened, size};
}

// Whether none of the rows has its result already.
ENGINE_INLINE bool have_values(const Row* rows, std::int64_t count) {
  bool is_any_written = false;
  for (std::int64_t r = 0; r < count; ++r) is_any_written = is_any_written || rows[r].factor == 0.0f;
  return !is_any_written;
}

void multiply_row(float* y, float factor, std::int64_t size) {
  std::int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) store(y + d, factor * load(y + d));
  for (; d < size; ++d) y[d] *= factor;
}

// Biases that leave nothing of a score: -inf, and the least float, which models add instead. Keys with them have
// probabilities of 0 in a row that has others, and are not read then.
constexpr float kExcluded = -1e38f;

// Whether the mask excludes all of `count` keys, at most kLanes, for the query of a task.
ENGINE_INLINE bool is_excluded(const Task& task, std::int64_t key, std::int64_t count) {
  const AttentionArgs& args = *task.args;
  const std::int64_t row = task.first * args.mask_view.query;
  const bool is_whole = count == kLanes && key + kLanes <= args.mask_keys && args.mask_view.key == 1;
  if (is_whole && args.mask == AttentionMask::kBool) {
    std::uint32_t any = 0, flags;
    for (int i = 0; i < kLanes; i += 4) {
      std::memcpy(&flags, task.mask + row + key + i, sizeof flags);
      any |= flags;
    }
    return any == 0;
  }
  const Vec bias = bias_row(args, task.mask, row, key, count);
  if (count == kLanes) return !is_any(~(bias <= broadcast(kExcluded)));
  float lanes[kLanes];
  store(lanes, bias);
  bool is_all = true;
  for (std::int64_t i = 0; i < count; ++i) is_all = is_all && lanes[i] <= kExcluded;
  return is_all;
}

ENGINE_INLINE bool are_excluded(const Task& task, std::int64_t key, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes)
    if (!is_excluded(task, key + i, min64(kLanes, count - i))) return false;
  return count > 0;
}

// Keys of a query, of all heads.
struct Visible {
  std::int64_t begin, end;
  bool has_gaps;  // whether keys between them may be left out, too
};

// The keys without those at both ends that the mask excludes; all of them if it excludes all, or has heads of its own.
Visible visible_keys(const Task& task) {
  const AttentionArgs& args = *task.args;
  Visible found = {task.key_begin, task.key_end, false};
  if (!task.mask || args.mask_view.head != 0) return found;
  while (found.begin < found.end && is_excluded(task, found.begin, min64(kLanes, found.end - found.begin)))
    found.begin = min64(found.end, found.begin + kLanes);
  if (found.begin >= found.end) return {task.key_begin, task.key_end, false};
  while (is_excluded(task, max64(found.begin, found.end - kLanes), min64(kLanes, found.end - found.begin)))
    found.end -= kLanes;
  found.has_gaps = true;
  return found;
}

// The rows of several heads, which read each block of keys and values while it is in a cache.
void attend_rows(Row* rows, std::int64_t count, bool has_gaps, float* widened) {
  constexpr std::int64_t kTogether = kRowVectors * kLanes;
  const AttentionArgs& args = *rows[0].task.args;
  const std::int64_t keys = max64(0, rows[0].task.key_end - rows[0].task.key_begin);
  for (std::int64_t r = 0; r < count; ++r) {
    const Task& task = rows[r].task;
    for (std::int64_t d = 0; d < args.size; ++d) task.queries[d] = args.scale * task.q[task.first * args.q.row + d];
    rows[r].is_seen = !task.mask && keys > 0;
    rows[r].maximum = broadcast(-kInf);
  }
  const bool are_keys_read_once = is_read_once(args.k_format, args.size);
  const ScoreRows score = score_rows_of(args.k_format);
  const AddRows add = add_rows_of(args.v_format);
  for (std::int64_t i = 0; i < keys; i += kLanes) {
    if (!are_keys_read_once) prefetch_rows(rows, count, true, i, kLanes, keys);
    const std::int64_t together = min64(kLanes, keys - i);
    if (has_gaps && is_excluded(rows[0].task, rows[0].task.key_begin + i, together)) {
      for (std::int64_t r = 0; r < count; ++r) store(rows[r].task.scores + i, broadcast(-kInf));
      continue;
    }
    if (are_keys_read_once && together == kLanes) {
      score(rows, count, i, keys);
      continue;
    }
    for (std::int64_t r = 0; r < count; r += args.shared_heads) {
      const Rows k = read_rows(rows[r].task, true, i, together, widened);
      for (std::int64_t head = 0; head < args.shared_heads; ++head) {
        Row& row = rows[r + head];
        keep_scores(row, row_scores(args, row.task.queries, k, together), i, keys);
      }
    }
  }
  prefetch_rows(rows, count, false, -2 * kLanes, 2 * kLanes, keys);
  for (std::int64_t r = 0; r < count; ++r) exponentiate_row(rows[r], keys);
  const bool are_values_read_once = is_read_once(args.v_format, args.value_size) && have_values(rows, count);
  for (std::int64_t i = 0; i == 0 || i < keys; i += kTogether) {
    if (!are_values_read_once) prefetch_rows(rows, count, false, i, kTogether, keys);
    std::int64_t together = min64(kTogether, keys - i);
    if (has_gaps && are_excluded(rows[0].task, rows[0].task.key_begin + i, together)) {
      if (i > 0) continue;
      together = 0;  // the first ones are assigned
    }
    if (are_values_read_once) {
      add(rows, count, i, together);
      continue;
    }
    for (std::int64_t r = 0; r < count; r += args.shared_heads) {
      const Rows v = read_rows(rows[r].task, false, i, together, widened);
      for (std::int64_t head = 0; head < args.shared_heads; ++head) {
        const Row& row = rows[r + head];
        if (row.factor != 0.0f) add_values(row.task, v, i, together, row.y);
      }
    }
  }
  for (std::int64_t r = 0; r < count; ++r)
    if (rows[r].part == nullptr && rows[r].factor != 0.0f) multiply_row(rows[r].y, rows[r].factor, args.value_size);
}

// The number of a row of Y; its parts follow each other.
ENGINE_INLINE std::int64_t row_index(const AttentionArgs& args, std::int64_t batch, std::int64_t head,
                                     std::int64_t query) {
  return (batch * args.heads + head) * args.queries + query;
}

// Limits a task to one part of its keys.
ENGINE_INLINE void take_part(Task& task, std::int64_t part) {
  const AttentionArgs& args = *task.args;
  const std::int64_t keys = max64(0, task.key_end - task.key_begin), vectors = (keys + kLanes - 1) / kLanes;
  const WorkRange range = split_work(vectors, static_cast<int>(part), static_cast<int>(args.parts));
  const std::int64_t begin = task.key_begin;
  task.key_begin = begin + min64(keys, range.begin * kLanes);
  task.key_end = begin + min64(keys, range.end * kLanes);
}

void attention_few_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(raw_args);
  const std::int64_t groups = args.heads / args.shared_heads;
  const std::int64_t units = args.batch * args.parts * args.queries * groups;
  if (units * args.value_size == 0) return;
  const NoDenormals guard;
  const WorkRange range = split_work(units, context.worker, context.workers);
  const std::int64_t query_floats = (args.size + 15) / 16 * 16, row_floats = query_floats + args.row_scores;
  float* const scratch = static_cast<float*>(context.scratch);
  auto* const parts = args.parts > 1 ? static_cast<AttentionPart*>(buffers[args.parts_at]) : nullptr;
  float* const sums = args.parts > 1 ? static_cast<float*>(buffers[args.parts_at + 1]) : nullptr;
  Visible visible = {};
  std::int64_t visible_row = -1;  // the batch and query that it is for
  for (std::int64_t at = range.begin; at < range.end;) {
    Row rows[kMaxRowsTogether] = {};
    const std::int64_t group = at % groups, query = at / groups % args.queries;
    const std::int64_t part = at / groups / args.queries % args.parts, batch = at / groups / args.queries / args.parts;
    const std::int64_t taken = min64(min64(args.units_together, range.end - at), groups - group);
    const std::int64_t count = taken * args.shared_heads;
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t head = group * args.shared_heads + r;
      Task& task = rows[r].task;
      task = head_task(args, buffers, batch * args.heads + head);
      set_queries(task, query, 1);
      if (visible_row != batch * args.queries + query) {
        visible = visible_keys(task);
        visible_row = batch * args.queries + query;
      }
      task.key_begin = visible.begin;
      task.key_end = visible.end;
      take_part(task, part);
      task.queries = scratch + r * row_floats;
      task.scores = task.queries + query_floats;
      const std::int64_t index = row_index(args, batch, head, query) * args.parts + part;
      rows[r].part = parts == nullptr ? nullptr : parts + index;
      rows[r].y = parts == nullptr ? task.y + query * args.y.row : sums + index * args.value_size;
    }
    attend_rows(rows, count, visible.has_gaps, scratch + args.units_together * args.shared_heads * row_floats);
    at += taken;
  }
}

// Split over rows of Y.
void attention_join_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(raw_args);
  if (args.parts == 1 || args.value_size == 0) return;
  const NoDenormals guard;
  const WorkRange range = split_work(args.batch * args.heads * args.queries, context.worker, context.workers);
  for (std::int64_t index = range.begin; index < range.end; ++index) {
    Task task = head_task(args, buffers, index / args.queries);
    set_queries(task, index % args.queries, 1);
    float* const y = task.y + task.first * args.y.row;
    const AttentionPart* parts = static_cast<const AttentionPart*>(buffers[args.parts_at]) + index * args.parts;
    const float* sums = static_cast<const float*>(buffers[args.parts_at + 1]) + index * args.parts * args.value_size;
    float largest = -kInf, total = 0.0f;
    bool is_seen = false;
    for (std::int64_t p = 0; p < args.parts; ++p) {
      largest = parts[p].largest > largest ? parts[p].largest : largest;
      is_seen = is_seen || parts[p].is_seen;
    }
    for (std::int64_t d = 0; d < args.value_size; ++d) y[d] = 0.0f;
    for (std::int64_t p = 0; p < args.parts; ++p, sums += args.value_size) {
      // Parts without a score above -inf have numerators of 0.
      const float below = parts[p].largest == -kInf ? (largest == -kInf ? 0.0f : -kInf) : parts[p].largest - largest;
      const float weight = exp_below_zero(broadcast(below))[0];
      total += weight * parts[p].total;
      for (std::int64_t d = 0; d < args.value_size; ++d) y[d] += weight * sums[d];
    }
    const float factor = factor_of(task, is_seen, total, y);
    if (factor != 0.0f) multiply_row(y, factor, args.value_size);
  }
}

}  // namespace

extern const KernelEntry attention_few_kernels[] = {{"attention_few_f32", attention_few_f32, nullptr},
                                                    {"attention_join_f32", attention_join_f32, nullptr},
                                                    {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
