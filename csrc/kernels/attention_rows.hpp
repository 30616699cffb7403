// The parts of attention that process scores, whichever kernel computes them: masks, softmax, and the rows of results.
// The queries of a block are in the lanes of vectors. Included by kernel files only.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/cache_rows_vector.hpp"
#include "simd/transpose.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr float kInf = __builtin_inff();

// e^x for x <= 8: relative error below 3e-7 down to -20, absolute error below 2e-7 e^-20 beyond, and 0 below -87. NaN
// stays NaN. Takes half the operations of simd::exp, which is accurate for small results, too.
ENGINE_INLINE Vec exp_below_zero(Vec x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  // 2^-126 is the smallest power that exponent bits can represent; and a scaling instruction whose result is below the
  // normal range, as for a score that a mask excludes, takes more than a hundred cycles on Intel's CPUs.
  constexpr float kMinArgument = -87.0f;
#if defined(__AVX512F__)
  const Vec bounded = x;  // results below kMinArgument are masked
#else
  const Vec bounded = max(broadcast(kMinArgument), x);
#endif
  const Vec shifted = fma(bounded, broadcast(1.44269504f), broadcast(kRound));
  const Vec r = fma(shifted - kRound, broadcast(-0.693147181f), bounded);
  Vec p = fma(broadcast(8.312525e-3f), r, broadcast(4.1890115e-2f));
  p = fma(p, r, broadcast(0.16667114f));
  p = fma(p, r, broadcast(0.49999231f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
#if defined(__AVX512F__)
  const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, (__m512)broadcast(kMinArgument), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(is_normal, (__m512)p, (__m512)(shifted - kRound));
#else
  const Vec scaled = p * (Vec)(((VecInt)shifted - (0x4b400000 - 127)) << 23);
  return x < kMinArgument ? zero() : scaled;
#endif
}

// One head and some of its queries.
struct Task {
  const AttentionArgs* args;
  const float* q;             // the first row
  const char *k, *v;          // the first rows, in their formats
  const unsigned char* mask;  // the first element, or null
  float* y;
  std::int64_t keys, offset;        // from the arguments, or of the batch
  std::int64_t first, count;        // queries
  std::int64_t key_begin, key_end;  // keys that any of them attends to
  float* queries;                   // [size][width], scaled
  float* scores;                    // [key_block][width]
  float* result;                    // [value_size][width]
  float* bias;                      // [kLanes][width]
};

// The value that the mask adds to the score of a key; `row` is the mask's row of the query.
ENGINE_INLINE float bias_at(const AttentionArgs& args, const unsigned char* mask, std::int64_t row, std::int64_t key) {
  if (key >= args.mask_keys) return -kInf;
  const std::int64_t at = row + key * args.mask_view.key;
  if (args.mask == AttentionMask::kBool) return mask[at] ? 0.0f : -kInf;
  return reinterpret_cast<const float*>(mask)[at];
}

// The biases of `count` keys from `key`, for one query.
ENGINE_INLINE Vec bias_row(const AttentionArgs& args, const unsigned char* mask, std::int64_t row, std::int64_t key,
                           std::int64_t count) {
  const bool is_whole = count == kLanes && key + kLanes <= args.mask_keys && args.mask_view.key == 1;
  if (is_whole && args.mask == AttentionMask::kFloat) return load(reinterpret_cast<const float*>(mask) + row + key);
  float lanes[kLanes] = {};
  if (is_whole)
    for (int i = 0; i < kLanes; ++i) lanes[i] = mask[row + key + i] ? 0.0f : -kInf;
  else
    for (std::int64_t i = 0; i < count; ++i) lanes[i] = bias_at(args, mask, row, key + i);
  return load(lanes);
}

// The biases of kLanes keys, of which the first `keys` exist, for the queries of a task: task.bias[key][query].
template <int kVectors>
void read_bias(const Task& task, std::int64_t key, std::int64_t keys) {
  constexpr int kWidth = kVectors * kLanes;
  const AttentionArgs& args = *task.args;
  if (args.mask_view.query == 0) {
    for (std::int64_t i = 0; i < keys; ++i) {
      const Vec bias = broadcast(bias_at(args, task.mask, 0, key + i));
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) store(task.bias + i * kWidth + v * kLanes, bias);
    }
    return;
  }
  for (int v = 0; v < kVectors; ++v) {
    Vec rows[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const std::int64_t query = v * kLanes + i;
      rows[i] = query < task.count ? bias_row(args, task.mask, (task.first + query) * args.mask_view.query, key, keys)
                                   : zero();
    }
    transpose_square(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) store(task.bias + i * kWidth + v * kLanes, rows[i]);
  }
}

// The state of the rows of a block of queries.
template <int kVectors>
struct Progress {
  Vec maximum[kVectors], sum[kVectors];
  VecInt seen[kVectors];  // -1 if any key was allowed
};

// `first` and the following integers, or `unbounded` in all lanes.
ENGINE_INLINE VecInt places(std::int64_t first, bool is_unbounded, std::int32_t unbounded) {
  alignas(kVectorBytes) std::int32_t lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const std::int64_t value = is_unbounded ? unbounded : first + i;
    lanes[i] = static_cast<std::int32_t>(value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value);
  }
  return (VecInt)load(reinterpret_cast<const float*>(lanes));
}

// Applies the cap, the mask and the bounds to the scores of keys [key, key + count).
template <int kVectors>
void restrain(const Task& task, std::int64_t key, std::int64_t count, Progress<kVectors>& progress) {
  constexpr int kWidth = kVectors * kLanes;
  const AttentionArgs& args = *task.args;
  if (args.softcap != 0.0f)
    for (std::int64_t i = 0; i < count * kWidth; i += kLanes)
      store(task.scores + i, args.softcap * tanh(load(task.scores + i) / args.softcap));
  const bool is_bounded = args.before >= 0 || args.after >= 0;
  if (!task.mask && !is_bounded) return;
  VecInt low[kVectors], high[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t place = task.first + v * kLanes + task.offset;
    low[v] = places(place - args.before, args.before < 0, INT32_MIN);
    high[v] = places(place + args.after, args.after < 0, INT32_MAX);
  }
  for (std::int64_t at = 0; at < count; at += kLanes) {
    const std::int64_t keys = min64(kLanes, count - at);
    if (task.mask) read_bias<kVectors>(task, key + at, keys);
    for (std::int64_t i = 0; i < keys; ++i) {
      float* scores = task.scores + (at + i) * kWidth;
      const VecInt place = VecInt{} + static_cast<std::int32_t>(key + at + i);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        Vec score = load(scores + v * kLanes);
        VecInt allowed = (place >= low[v]) & (place <= high[v]);
        score = allowed ? score : broadcast(-kInf);
        if (task.mask) {
          const Vec bias = load(task.bias + i * kWidth + v * kLanes);
          score += bias;
          allowed &= bias != -kInf;
        }
        progress.seen[v] |= allowed;
        store(scores + v * kLanes, score);
      }
    }
  }
}

ENGINE_INLINE bool is_any(VecInt lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#else
  std::int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= lanes[i];
  return all != 0;
#endif
}

// Converts the scores of a block of keys to the numerators of their probabilities. Returns whether the accumulated
// result must be multiplied by `correction` first: the reference of a row follows its maximum only if the maximum is
// more than kMinRise above it, since numerators up to e^8 are just as exact.
template <int kVectors>
bool exponentiate(const Task& task, std::int64_t count, Progress<kVectors>& progress, Vec (&correction)[kVectors]) {
  constexpr int kWidth = kVectors * kLanes;
  constexpr float kMinRise = 8.0f;
  Vec maximum[kVectors], sum[kVectors];
  VecInt has_risen{};
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) maximum[v] = progress.maximum[v];
  for (std::int64_t i = 0; i < count; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) maximum[v] = max(load(task.scores + i * kWidth + v * kLanes), maximum[v]);
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) {
    const VecInt rises = maximum[v] > progress.maximum[v] + kMinRise;
    correction[v] = rises ? exp_below_zero(progress.maximum[v] - maximum[v]) : broadcast(1.0f);
    has_risen |= rises;
    maximum[v] = rises ? maximum[v] : progress.maximum[v];
    progress.maximum[v] = maximum[v];
    sum[v] = progress.sum[v] * correction[v];
    // A row without a score above -inf: makes its numerators 0, not NaN, so that its sum is 0.
    maximum[v] = maximum[v] == -kInf ? zero() : maximum[v];
  }
  for (std::int64_t i = 0; i < count; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* score = task.scores + i * kWidth + v * kLanes;
      const Vec numerator = exp_below_zero(load(score) - maximum[v]);
      sum[v] += numerator;
      store(score, numerator);
    }
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) progress.sum[v] = sum[v];
  return is_any(has_risen);
}

// A row of K or V in place.
ENGINE_INLINE const char* key_row(const Task& task, std::int64_t key) {
  return task.k + key * task.args->k.row * cache_element_bytes(task.args->k_format);
}
ENGINE_INLINE const char* value_row(const Task& task, std::int64_t key) {
  return task.v + key * task.args->v.row * cache_element_bytes(task.args->v_format);
}
ENGINE_INLINE const float* floats(const char* row) {
  return reinterpret_cast<const float*>(row);
}

// Whether a row has the result of probabilities of 0; `total` is the sum of the numerators.
ENGINE_INLINE bool is_zero_row(const AttentionArgs& args, bool is_seen, float total) {
  if (args.keys == 0) return true;
  return args.rows == AttentionRows::kAttention ? !is_seen
         : args.rows == AttentionRows::kGuarded ? !(total > 0.0f)
                                                : false;
}

// Zero probabilities times V: 0 unless V has NaN.
ENGINE_NOINLINE void write_zero_row(const Task& task, float* y) {
  const AttentionArgs& args = *task.args;
  for (std::int64_t d = 0; d < args.value_size; ++d) y[d] = 0.0f;
  for (std::int64_t key = 0; key < task.keys; ++key) {
    const char* row = value_row(task, key);
    for (std::int64_t d = 0; d < args.value_size; ++d)
      y[d] += 0.0f * cache_value(args.v_format, row, args.value_size, d);
  }
}

template <int kVectors>
void write_rows(const Task& task, const Progress<kVectors>& progress) {
  constexpr int kWidth = kVectors * kLanes;
  const AttentionArgs& args = *task.args;
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t count = min64(kLanes, task.count - v * kLanes);
    float* y = task.y + (task.first + v * kLanes) * args.y.row;
    const Vec factor = 1.0f / progress.sum[v];
    std::int64_t d = 0;
    for (; d + kLanes <= args.value_size; d += kLanes) {
      Vec rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = factor * load(task.result + (d + i) * kWidth + v * kLanes);
      transpose_square(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        if (i < count) store(y + i * args.y.row + d, rows[i]);
    }
    for (; d < args.value_size; ++d)
      for (std::int64_t i = 0; i < count; ++i)
        y[i * args.y.row + d] = factor[i] * task.result[d * kWidth + v * kLanes + i];
    for (std::int64_t i = 0; i < count; ++i) {
      const bool is_zero = is_zero_row(args, progress.seen[v][i] != 0, progress.sum[v][i]);
      if (is_zero) write_zero_row(task, y + i * args.y.row);
    }
  }
}

// The task of one head, without queries.
Task head_task(const AttentionArgs& args, void* const* buffers, std::int64_t index) {
  Task task = {};
  task.args = &args;
  const std::int64_t batch = index / args.heads, head = index % args.heads;
  const std::int64_t kv_head = head / (args.heads / args.kv_heads);
  task.keys = args.keys;
  task.offset = args.offset;
  if (args.lengths_at != 0) {
    std::int64_t length;
    std::memcpy(&length, static_cast<const char*>(buffers[args.lengths_at]) + batch * 8, 8);
    constexpr std::int64_t kFar = std::int64_t{1} << 40;  // from any place; larger distances would overflow
    task.keys = max64(0, min64(length, args.keys));
    task.offset = max64(-kFar, min64(length, kFar)) - args.queries;
  }
  task.q = static_cast<const float*>(buffers[0]) + batch * args.q.batch + head * args.q.head;
  task.k = static_cast<const char*>(buffers[args.k_at]) +
           (batch * args.k.batch + kv_head * args.k.head) * cache_element_bytes(args.k_format);
  task.v = static_cast<const char*>(buffers[args.v_at]) +
           (batch * args.v.batch + kv_head * args.v.head) * cache_element_bytes(args.v_format);
  if (args.mask != AttentionMask::kNone) {
    const std::int64_t element = args.mask == AttentionMask::kFloat ? 4 : 1;
    task.mask = static_cast<const unsigned char*>(buffers[3]) +
                (batch * args.mask_view.batch + head * args.mask_view.head) * element;
  }
  task.y = static_cast<float*>(buffers[args.y_at]) + batch * args.y.batch + head * args.y.head;
  return task;
}

void set_queries(Task& task, std::int64_t first, std::int64_t count) {
  const AttentionArgs& args = *task.args;
  task.first = first;
  task.count = count;
  task.key_begin = args.before < 0 ? 0 : max64(0, first + task.offset - args.before);
  task.key_end = args.after < 0 ? task.keys : min64(task.keys, first + count + task.offset + args.after);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
