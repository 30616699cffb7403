// attention_f32: softmax(scale * Q K^T + mask) V, for any number of queries; attention_few_f32 is faster for few.
// attention_widen_f32: K or V as f32, as a phase before it.
//
// Operands: Q, K, V, [mask], Y (attention.hpp), float alignment; Y must not overlap the others. A key that a bound
// (causal attention, a window) excludes is not read, so a NaN there does not spread. Results below the normal range are
// zero.
//
// attention_f32 holds the queries of a block in the lanes of vectors: the scores of a key are a few vectors, maximum
// and sum are taken along columns, and K and V are read in place, broadcasting one element at a time, without packing.
// Only a block's queries and results, which are few, are transposed. Keys are processed in blocks; the maximum, the sum
// and the accumulated result are rescaled if a later block has a larger score.
#include "kernels/attention_rows.hpp"
#include "simd/denormals.hpp"
#include "simd/indices.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMaxVectors = 3;
constexpr int kMaxPixels[4] = {0, 14, 14, 9};
#else
constexpr int kMaxVectors = 2;
constexpr int kMaxPixels[4] = {0, 12, 6, 0};
#endif

// The address of a pixel, `step` bytes after the previous one, in a form that an addressing mode covers.
ENGINE_INLINE float pixel_at(int pixel, const char* first, const char* eighth, std::int64_t step, std::int64_t step3,
                             std::int64_t step5) {
  const char* base = pixel < 7 ? first : eighth;
  std::int64_t offset = 0;
  switch (pixel % 7) {
    case 0:
      break;
    case 1:
      offset = step;
      break;
    case 2:
      offset = 2 * step;
      break;
    case 3:
      offset = step3;
      break;
    case 4:
      offset = 4 * step;
      break;
    case 5:
      offset = step5;
      break;
    case 6:
      offset = 2 * step3;
      break;
  }
  return *reinterpret_cast<const float*>(base + offset);
}

// y[p][..] = (y[p][..] or 0) + sum over d of x[p, d] * w[d][..]; rows of w and y have kVectors vectors. kRows: pixels
// are rows, `step` floats apart, and d is adjacent (Q K^T); otherwise pixels are adjacent and d is `step` floats apart
// (P V).
template <int kVectors, int kPixels, bool kRows>
ENGINE_NOINLINE void product(const float* x, std::int64_t step, const float* w, std::int64_t depth, float* y,
                             bool is_sum) {
  constexpr int kWidth = kVectors * kLanes;
  Vec acc[kPixels][kVectors];
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) acc[p][v] = is_sum ? load(y + p * kWidth + v * kLanes) : zero();
  if constexpr (kRows) {
    std::int64_t bytes = step * 4, bytes3 = bytes * 3, bytes5 = bytes * 5;
    const char* first = reinterpret_cast<const char*>(x);
    const char* eighth = first + bytes * 7;
    for (std::int64_t d = 0; d < depth; ++d, first += 4, eighth += 4, w += kWidth) {
      ENGINE_FORGET(first);
      ENGINE_FORGET(eighth);
      ENGINE_FORGET(bytes);
      ENGINE_FORGET(bytes3);
      ENGINE_FORGET(bytes5);
      Vec weight[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) weight[v] = load(w + v * kLanes);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) {
        const Vec value = broadcast(pixel_at(p, first, eighth, bytes, bytes3, bytes5));
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) acc[p][v] = fma(value, weight[v], acc[p][v]);
      }
    }
  } else {
    for (std::int64_t d = 0; d < depth; ++d, x += step, w += kWidth) {
      ENGINE_FORGET(x);
      Vec weight[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) weight[v] = load(w + v * kLanes);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) {
        const Vec value = broadcast(x[p]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) acc[p][v] = fma(value, weight[v], acc[p][v]);
      }
    }
  }
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(y + p * kWidth + v * kLanes, acc[p][v]);
}

using ProductFn = void (*)(const float* x, std::int64_t step, const float* w, std::int64_t depth, float* y,
                           bool is_sum);

template <int kVectors, bool kRows, int... kPixels>
ProductFn pick(std::int64_t pixels, Indices<kPixels...>) {
  static const ProductFn table[] = {&product<kVectors, kPixels, kRows>...};
  return table[pixels - 1];
}

// The product for any number of pixels, in tiles whose sizes differ by at most one.
template <int kVectors, bool kRows>
void multiply(const float* x, std::int64_t step, std::int64_t pixels, const float* w, std::int64_t depth, float* y,
              bool is_sum) {
  if (pixels == 0) return;
  typename CountTo<kMaxPixels[kVectors]>::Type all;
  const std::int64_t tiles = (pixels + kMaxPixels[kVectors] - 1) / kMaxPixels[kVectors];
  const std::int64_t least = pixels / tiles, wide = pixels % tiles;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t count = least + (t < wide);
    pick<kVectors, kRows>(count, all)(x, step, w, depth, y, is_sum);
    x += count * (kRows ? step : 1);
    y += count * kVectors * kLanes;
  }
}

template <int kVectors>
void pack_queries(const Task& task) {
  constexpr int kWidth = kVectors * kLanes;
  const AttentionArgs& args = *task.args;
  const Vec scale = broadcast(args.scale);
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t count = min64(kLanes, task.count - v * kLanes);
    const float* from = task.q + (task.first + v * kLanes) * args.q.row;
    std::int64_t d = 0;
    for (; d + kLanes <= args.size; d += kLanes) {
      Vec rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = i < count ? scale * load(from + i * args.q.row + d) : zero();
      transpose_square(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(task.queries + (d + i) * kWidth + v * kLanes, rows[i]);
    }
    for (; d < args.size; ++d)
      for (int i = 0; i < kLanes; ++i)
        task.queries[d * kWidth + v * kLanes + i] = i < count ? args.scale * from[i * args.q.row + d] : 0.0f;
  }
}

// Rows of K and V of consecutive keys, in place or copied.
struct Keys {
  std::int64_t first, count;
  const float *k, *v;
  std::int64_t k_row, v_row;
};

// Copies rows that are `bytes` apart, as f32.
void copy_rows(CacheFormat format, const char* from, std::int64_t bytes, std::int64_t rows, std::int64_t size,
               float* to) {
  for (std::int64_t r = 0; r < rows; ++r, from += bytes, to += size) {
    if (format != CacheFormat::kF32) {
      widen_row(format, from, size, to);
      continue;
    }
    std::int64_t d = 0;
    for (; d + kLanes <= size; d += kLanes) store(to + d, load(floats(from) + d));
    for (; d < size; ++d) to[d] = floats(from)[d];
  }
}

// Whether the mask forbids `count` keys to all queries of a task, so that their scores are -inf.
bool are_forbidden(const Task& task, std::int64_t key, std::int64_t count) {
  const AttentionArgs& args = *task.args;
  if (!task.mask) return false;
  const std::int64_t queries = args.mask_view.query == 0 ? 1 : task.count;
  for (std::int64_t query = 0; query < queries; ++query) {
    const std::int64_t row = (task.first + query) * args.mask_view.query;
    for (std::int64_t at = 0; at < count; at += kLanes) {
      const std::int64_t keys = min64(kLanes, count - at);
      float lanes[kLanes];
      const Vec bias = bias_row(args, task.mask, row, key + at, keys);
      if (keys == kLanes) {
        if (is_any(bias != -kInf)) return false;
        continue;
      }
      store(lanes, bias);
      for (std::int64_t i = 0; i < keys; ++i)
        if (lanes[i] != -kInf) return false;
    }
  }
  return true;
}

// Adds the keys that the queries of a task attend to.
template <int kVectors>
void attend_keys(const Task& task, Keys keys, Progress<kVectors>& progress) {
  constexpr int kWidth = kVectors * kLanes;
  const AttentionArgs& args = *task.args;
  const std::int64_t begin = max64(keys.first, task.key_begin);
  keys.count = min64(keys.first + keys.count, task.key_end) - begin;
  if (keys.count <= 0 || are_forbidden(task, begin, keys.count)) return;
  keys.k += (begin - keys.first) * keys.k_row;
  keys.v += (begin - keys.first) * keys.v_row;
  multiply<kVectors, true>(keys.k, keys.k_row, keys.count, task.queries, args.size, task.scores, false);
  restrain<kVectors>(task, begin, keys.count, progress);
  Vec correction[kVectors];
  const bool has_risen = exponentiate<kVectors>(task, keys.count, progress, correction);
  const bool is_first = begin == task.key_begin;
  if (has_risen && !is_first)
    for (std::int64_t d = 0; d < args.value_size; ++d)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        float* result = task.result + d * kWidth + v * kLanes;
        store(result, load(result) * correction[v]);
      }
  multiply<kVectors, false>(keys.v, keys.v_row, args.value_size, task.scores, keys.count, task.result, !is_first);
}

// Processes `count` blocks of queries of a head together, so that each block of keys is copied for all of them: rows
// of several heads are far apart, and would displace each other in the L1 cache.
template <int kVectors>
void attend(Task* tasks, std::int64_t count, float* copies) {
  const AttentionArgs& args = *tasks[0].args;
  Progress<kVectors> progress[kMaxQueryBlocks];
  std::int64_t key_begin = args.keys, key_end = 0;
  for (std::int64_t t = 0; t < count; ++t) {
    const Task& task = tasks[t];
    pack_queries<kVectors>(task);
    const bool may_be_blind = task.mask || args.before >= 0 || args.after >= 0 || task.keys == 0;
    for (int v = 0; v < kVectors; ++v) {
      progress[t].maximum[v] = broadcast(-kInf);
      progress[t].sum[v] = zero();
      progress[t].seen[v] = VecInt{} - (may_be_blind ? 0 : 1);
    }
    for (std::int64_t i = 0; i < args.value_size * kVectors * kLanes; i += kLanes) store(task.result + i, zero());
    key_begin = min64(key_begin, task.key_begin);
    key_end = max64(key_end, task.key_end);
  }
  if (args.is_repeatable) key_begin -= key_begin % args.key_block;
  for (std::int64_t key = key_begin; key < key_end; key += args.key_block) {
    Keys keys = {key,
                 min64(args.key_block, key_end - key),
                 floats(key_row(tasks[0], key)),
                 floats(value_row(tasks[0], key)),
                 args.k.row,
                 args.v.row};
    if (copies_keys(args)) {
      float* values = copies + args.key_block * args.size;
      copy_rows(args.k_format, key_row(tasks[0], key), args.k.row * cache_element_bytes(args.k_format), keys.count,
                args.size, copies);
      copy_rows(args.v_format, value_row(tasks[0], key), args.v.row * cache_element_bytes(args.v_format), keys.count,
                args.value_size, values);
      keys = {key, keys.count, copies, values, args.size, args.value_size};
    }
    for (std::int64_t t = 0; t < count; ++t) attend_keys<kVectors>(tasks[t], keys, progress[t]);
  }
  for (std::int64_t t = 0; t < count; ++t) write_rows<kVectors>(tasks[t], progress[t]);
}

// Blocks of queries of one head: the first ones have one vector more than the others, and no group has both.
struct QueryBlocks {
  std::int64_t vectors;       // in each of the other blocks
  std::int64_t wide, narrow;  // number of blocks
  std::int64_t wide_groups, groups;
};

QueryBlocks cut_queries(const AttentionArgs& args) {
  const std::int64_t vectors = (args.queries + kLanes - 1) / kLanes;
  const std::int64_t blocks = (vectors + kMaxVectors - 1) / kMaxVectors;
  QueryBlocks cut = {};
  cut.vectors = vectors / blocks;
  cut.wide = vectors % blocks;
  cut.narrow = blocks - cut.wide;
  cut.wide_groups = (cut.wide + args.query_blocks - 1) / args.query_blocks;
  cut.groups = cut.wide_groups + (cut.narrow + args.query_blocks - 1) / args.query_blocks;
  return cut;
}

void attention_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(raw_args);
  const std::int64_t all = args.batch * args.heads;
  if (all * args.queries * args.value_size == 0) return;
  const NoDenormals guard;
  constexpr std::int64_t kWidest = kMaxVectors * kLanes;
  const QueryBlocks cut = cut_queries(args);
  const WorkRange range = split_work(all * cut.groups, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    // Alternates between both ends: in causal attention, later blocks have more keys.
    const std::int64_t turn = at % cut.groups, group = turn % 2 == 0 ? turn / 2 : cut.groups - 1 - turn / 2;
    const bool is_wide = group < cut.wide_groups;
    const std::int64_t first = is_wide ? 0 : cut.wide, blocks = is_wide ? cut.wide : cut.narrow;
    const WorkRange part = split_work(blocks, static_cast<int>(is_wide ? group : group - cut.wide_groups),
                                      static_cast<int>(is_wide ? cut.wide_groups : cut.groups - cut.wide_groups));
    const std::int64_t vectors = cut.vectors + is_wide;
    Task tasks[kMaxQueryBlocks];
    float* free = static_cast<float*>(context.scratch);
    for (std::int64_t block = part.begin; block < part.end; ++block) {
      Task& task = tasks[block - part.begin];
      task = head_task(args, buffers, at / cut.groups);
      const std::int64_t begin = (first * (cut.vectors + 1) + block * vectors) * kLanes;
      set_queries(task, begin, min64(args.queries - begin, vectors * kLanes));
      task.queries = free;
      task.result = task.queries + args.size * kWidest;
      free = task.result + args.value_size * kWidest;
    }
    for (std::int64_t t = 0; t < part.end - part.begin; ++t) {
      tasks[t].bias = free;
      tasks[t].scores = free + kLanes * kWidest;
    }
    float* copies = free + (kLanes + args.key_block) * kWidest;
    const auto attend_all = vectors == 1 ? attend<1>
#if defined(__AVX512F__) || defined(__aarch64__)
                            : vectors == 3 ? attend<3>
#endif
                                           : attend<2>;
    attend_all(tasks, part.end - part.begin, copies);
  }
}

// Split over rows.
void attention_widen_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AttentionWidenArgs& args = *static_cast<const AttentionWidenArgs*>(raw_args);
  const char* from = static_cast<const char*>(buffers[args.from_at]);
  float* to = static_cast<float*>(buffers[args.to_at]);
  const std::int64_t element = cache_element_bytes(args.format);
  const WorkRange range = split_work(args.batch * args.kv_heads * args.keys, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t head = at / args.keys, key = at % args.keys;
    const std::int64_t place =
        head / args.kv_heads * args.from.batch + head % args.kv_heads * args.from.head + key * args.from.row;
    widen_row(args.format, from + place * element, args.size, to + at * args.size);
  }
}

const AttentionTraits attention_traits = {kLanes, kMaxVectors};

}  // namespace

extern const KernelEntry attention_kernels[] = {{"attention_f32", attention_f32, &attention_traits},
                                                {"attention_widen_f32", attention_widen_f32, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
