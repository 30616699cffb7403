// linear_attention_f32: see linear_attention.hpp.
//
// Operands: query [batch, tokens, heads * group * keys], key, value, then, if given, past [batch, heads, keys, values],
// decay (a logarithm) and beta; output, present. Float alignment; none may overlap. Split over tiles of the values of a
// head, whose states are independent of each other.
#include "kernels/linear_attention.hpp"

#include <cmath>

#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

struct Operands {
  const float *query, *key, *value, *past, *decay, *beta;
  float *output, *present;
};

Operands operands_of(const LinearAttentionArgs& args, void* const* buffers) {
  Operands found = {};
  found.query = static_cast<const float*>(buffers[0]);
  found.key = static_cast<const float*>(buffers[1]);
  found.value = static_cast<const float*>(buffers[2]);
  int next = 3;
  if (args.has_past) found.past = static_cast<const float*>(buffers[next++]);
  if (args.decays > 0) found.decay = static_cast<const float*>(buffers[next++]);
  if (args.betas > 0) found.beta = static_cast<const float*>(buffers[next++]);
  found.output = static_cast<float*>(buffers[next++]);
  found.present = static_cast<float*>(buffers[next]);
  return found;
}

// A token of a head, and the columns of its values that are computed together.
struct Token {
  const float *key, *decay, *query;
  float factor;  // exp(decay) if there is one for each head, 1 without
};

Token token_of(const LinearAttentionArgs& args, const Operands& of, std::int64_t head) {
  Token token = {of.key + head * args.keys, nullptr, of.query + head * args.group * args.keys, 1.0f};
  if (args.decays > 0) token.decay = of.decay + head * args.decays;
  if (args.decays == 1) token.factor = expf(token.decay[0]);
  return token;
}

ENGINE_INLINE float factor_of(const LinearAttentionArgs& args, const Token& token, std::int64_t i) {
  return args.decays > 1 ? expf(token.decay[i]) : token.factor;
}

// Vectors of adjacent columns; `count` lanes if there is one vector.
template <int kVectors>
ENGINE_INLINE Vec read(const float* from, int v, std::int64_t count) {
  return kVectors == 1 ? load_partial(from, count, zero()) : load(from + v * kLanes);
}

template <int kVectors>
ENGINE_INLINE void write(float* to, int v, Vec value, std::int64_t count) {
  if constexpr (kVectors == 1)
    store_partial(to, value, count);
  else
    store(to + v * kLanes, value);
}

// The sums of a token's decayed state with its key and its first query. The update by the token before, which is
// pending, is added first; the decayed state is stored in `to`, unless this is the only token.
template <int kVectors, bool kCorrects, bool kIsPending, bool kStores>
ENGINE_INLINE void decay_and_sum(const LinearAttentionArgs& args, const Token& token, const float* from, float* to,
                                 std::int64_t count, const float* pending_key, const Vec* pending, Vec* held,
                                 Vec* seen) {
  for (std::int64_t i = 0; i < args.keys; ++i) {
    const Vec factor = broadcast(factor_of(args, token, i)), key = broadcast(token.key[i]),
              query = broadcast(token.query[i]);
    for (int v = 0; v < kVectors; ++v) {
      Vec row = read<kVectors>(from + i * args.values, v, count);
      if constexpr (kIsPending) row = fma(broadcast(pending_key[i]), pending[v], row);
      row *= factor;
      if constexpr (kStores) write<kVectors>(to + i * args.values, v, row, count);
      if constexpr (kCorrects) held[v] = fma(key, row, held[v]);
      seen[v] = fma(query, row, seen[v]);
    }
  }
}

float dot(const float* a, const float* b, std::int64_t count) {
  Vec total = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) total = fma(load(a + i), load(b + i), total);
  if (i < count) total = fma(load_partial(a + i, count - i, zero()), load_partial(b + i, count - i, zero()), total);
  return reduce_add(total);
}

// All tokens for kVectors vectors of columns from `column`. A token's results are those of the state before its update,
// and of the update: its query times (decayed state + key * added) is seen + (query * key) * added. So each token reads
// and writes the state once.
template <int kVectors, bool kCorrects>
void walk(const LinearAttentionArgs& args, const Operands& of, std::int64_t b, std::int64_t h, std::int64_t column,
          std::int64_t count) {
  const std::int64_t at = (b * args.heads + h) * args.keys * args.values + column;
  float* const state = of.present + at;
  const float* from = args.has_past ? of.past + at : state;
  if (!args.has_past || args.tokens == 0)
    for (std::int64_t i = 0; i < args.keys; ++i)
      for (int v = 0; v < kVectors; ++v)
        write<kVectors>(state + i * args.values, v,
                        args.has_past ? read<kVectors>(from + i * args.values, v, count) : zero(), count);
  if (args.tokens == 0) return;
  const bool stores = args.tokens > 1 || args.group > 1;
  Token token = {};
  Vec added[kVectors] = {};
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    const std::int64_t row = b * args.tokens + t, head = row * args.heads + h;
    const float* const former = token.key;
    token = token_of(args, of, head);
    Vec held[kVectors] = {}, seen[kVectors] = {};
    if (t > 0)
      decay_and_sum<kVectors, kCorrects, true, true>(args, token, state, state, count, former, added, held, seen);
    else if (stores)
      decay_and_sum<kVectors, kCorrects, false, true>(args, token, from, state, count, former, added, held, seen);
    else
      decay_and_sum<kVectors, kCorrects, false, false>(args, token, from, state, count, former, added, held, seen);
    const float beta = args.betas == 0 ? 1.0f : of.beta[row * args.betas + (args.betas > 1 ? h : 0)];
    for (int v = 0; v < kVectors; ++v) {
      added[v] = read<kVectors>(of.value + head * args.values + column, v, count);
      if constexpr (kCorrects) added[v] = beta * (added[v] - held[v]);
    }
    for (std::int64_t g = 0; g < args.group; ++g) {
      const float* query = token.query + g * args.keys;
      if (g > 0) {
        for (int v = 0; v < kVectors; ++v) seen[v] = zero();
        for (std::int64_t i = 0; i < args.keys; ++i)
          for (int v = 0; v < kVectors; ++v)
            seen[v] = fma(broadcast(query[i]), read<kVectors>(state + i * args.values, v, count), seen[v]);
      }
      const Vec product = broadcast(dot(query, token.key, args.keys));
      float* to = of.output + (head * args.group + g) * args.values + column;
      for (int v = 0; v < kVectors; ++v) write<kVectors>(to, v, args.scale * fma(product, added[v], seen[v]), count);
    }
  }
  for (std::int64_t i = 0; i < args.keys; ++i) {
    const float factor = stores ? 1.0f : factor_of(args, token, i);
    const float* last = stores ? state : from;
    for (int v = 0; v < kVectors; ++v) {
      const Vec row = factor * read<kVectors>(last + i * args.values, v, count);
      write<kVectors>(state + i * args.values, v, fma(broadcast(token.key[i]), added[v], row), count);
    }
  }
}

constexpr int kMost = kLinearTile / kLanes < 4 ? kLinearTile / kLanes : 4;

template <bool kCorrects>
void walk_tile(const LinearAttentionArgs& args, const Operands& of, std::int64_t b, std::int64_t h, std::int64_t column,
               std::int64_t end) {
  if constexpr (kMost > 1)
    for (; column + kMost * kLanes <= end; column += kMost * kLanes)
      walk<kMost, kCorrects>(args, of, b, h, column, kLanes);
  for (; column < end; column += kLanes) walk<1, kCorrects>(args, of, b, h, column, min64(kLanes, end - column));
}

void linear_attention_f32(const void* arguments, void* const* buffers, const KernelContext& context) {
  const LinearAttentionArgs& args = *static_cast<const LinearAttentionArgs*>(arguments);
  const Operands of = operands_of(args, buffers);
  const std::int64_t tiles = (args.values + kLinearTile - 1) / kLinearTile;
  const WorkRange range = split_work(args.batch * args.heads * tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t part = i / tiles, column = i % tiles * kLinearTile;
    const std::int64_t end = min64(column + kLinearTile, args.values);
    const auto walks = args.betas > 0 ? walk_tile<true> : walk_tile<false>;
    walks(args, of, part / args.heads, part % args.heads, column, end);
  }
}

}  // namespace

extern const KernelEntry linear_attention_kernels[] = {{"linear_attention_f32", linear_attention_f32, nullptr},
                                                       {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
