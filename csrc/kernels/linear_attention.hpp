// Linear attention (ONNX LinearAttention-27): a state [keys, values] for each head, updated by one token after another.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Values that are processed together.
constexpr std::int64_t kLinearTile = 32;

struct LinearAttentionArgs {
  std::int64_t batch, tokens, heads;  // heads: of keys and values
  std::int64_t group;                 // heads of queries for each of them
  std::int64_t keys, values;          // lengths of a head
  std::int64_t decays;                // for each head: 0 (no decay), 1, or one for each element of a key
  std::int64_t betas;                 // for each token: 0 (no correction), 1, or one for each head
  std::int32_t has_past;
  float scale;
};

}  // namespace engine
