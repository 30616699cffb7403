// Attention with both products in bf16 on the tiles of AMX, and softmax in f32.
#pragma once

#include "kernels/attention.hpp"

namespace engine {

// Operands as for attention_f32; last, two temporaries, which the step's first phase fills for each head of K and V:
//
//   K   [ceil(size / 32)][keys][32]         keys and value_size rounded up to 32; depths beyond the last are zero
//   V   [keys / 32][value_size][32]         transposed
struct AttentionAmxArgs {
  AttentionArgs attention;        // key_block is a multiple of 32
  std::int64_t steps;             // of depth of Q K^T
  std::int64_t keys, value_size;  // rounded up
  std::int32_t k_panel, v_panel;  // indices of buffers
};

constexpr std::int64_t kAttentionTile = 32;  // queries, keys and elements of a value that are computed together

// Bytes of a head in the two temporaries, and of a worker's scratch.
static inline std::int64_t attention_k_bytes(const AttentionAmxArgs& args) {
  return args.steps * args.keys * 64;
}
static inline std::int64_t attention_v_bytes(const AttentionAmxArgs& args) {
  return args.keys / kAttentionTile * args.value_size * 64;
}
static inline std::int64_t attention_scratch_bytes(const AttentionAmxArgs& args) {
  // Packed queries; packed probabilities; scores, results and biases.
  const std::int64_t blocks = args.attention.key_block / kAttentionTile;
  return (args.steps + blocks) * 2048 + (args.attention.key_block + args.value_size + 16) * kAttentionTile * 4;
}

}  // namespace engine
