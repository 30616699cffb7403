// linear_attention_f32: see linear_attention.hpp.
//
// Operands: query [batch, tokens, heads * group * keys], key, value, then, if given, past [batch, heads, keys, values],
// decay (a logarithm) and beta; output, present. Float alignment; none may overlap. Split over tiles of the values of a
// head, whose states are independent of each other.
#include "kernels/linear_attention.hpp"

#include <cmath>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

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

// One token for `width` values; `state` has a row of `args.values` for each element of a key.
void step(const LinearAttentionArgs& args, const Operands& of, std::int64_t b, std::int64_t t, std::int64_t h,
          std::int64_t column, std::int64_t width, float* state) {
  const std::int64_t token = b * args.tokens + t, head = token * args.heads + h;
  const float* key = of.key + head * args.keys;
  const float* value = of.value + head * args.values + column;
  const float* decay = args.decays > 0 ? of.decay + head * args.decays : nullptr;
  float added[kLinearTile] = {};
  float factor = decay == nullptr ? 1.0f : expf(decay[0]);
  for (std::int64_t i = 0; i < args.keys; ++i) {
    float* row = state + i * args.values;
    if (args.decays > 1) factor = expf(decay[i]);
    if (args.decays > 0)
      for (std::int64_t c = 0; c < width; ++c) row[c] *= factor;
    if (args.betas > 0)
      for (std::int64_t c = 0; c < width; ++c) added[c] += row[c] * key[i];
  }
  const float beta = args.betas == 0 ? 1.0f : of.beta[token * args.betas + (args.betas > 1 ? h : 0)];
  for (std::int64_t c = 0; c < width; ++c) added[c] = beta * (value[c] - added[c]);
  for (std::int64_t i = 0; i < args.keys; ++i) {
    float* row = state + i * args.values;
    for (std::int64_t c = 0; c < width; ++c) row[c] += key[i] * added[c];
  }
  for (std::int64_t g = 0; g < args.group; ++g) {
    const std::int64_t reader = head * args.group + g;
    const float* query = of.query + reader * args.keys;
    float sums[kLinearTile] = {};
    for (std::int64_t i = 0; i < args.keys; ++i) {
      const float* row = state + i * args.values;
      for (std::int64_t c = 0; c < width; ++c) sums[c] += query[i] * row[c];
    }
    float* to = of.output + reader * args.values + column;
    for (std::int64_t c = 0; c < width; ++c) to[c] = args.scale * sums[c];
  }
}

void linear_attention_f32(const void* arguments, void* const* buffers, const KernelContext& context) {
  const LinearAttentionArgs& args = *static_cast<const LinearAttentionArgs*>(arguments);
  const Operands of = operands_of(args, buffers);
  const std::int64_t tiles = (args.values + kLinearTile - 1) / kLinearTile, size = args.keys * args.values;
  const WorkRange range = split_work(args.batch * args.heads * tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t part = i / tiles, column = i % tiles * kLinearTile;
    const std::int64_t width = args.values - column < kLinearTile ? args.values - column : kLinearTile;
    float* state = of.present + part * size + column;
    for (std::int64_t k = 0; k < args.keys; ++k)
      for (std::int64_t c = 0; c < width; ++c)
        state[k * args.values + c] = args.has_past ? of.past[part * size + column + k * args.values + c] : 0.0f;
    for (std::int64_t t = 0; t < args.tokens; ++t)
      step(args, of, part / args.heads, t, part % args.heads, column, width, state);
  }
}

}  // namespace

extern const KernelEntry linear_attention_kernels[] = {{"linear_attention_f32", linear_attention_f32, nullptr},
                                                       {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
