// softmax(scale * Q K^T + mask) V without the matrix of scores in memory.
#pragma once

#include "kernels/cache_rows.hpp"

namespace engine {

// The strides of Q, K, V or Y, in elements of their format; the elements of a row are adjacent. So [B, H, S, D],
// [B, S, H * D] and a part of a packed [B, S, 3 * H * D] are all read in place.
struct AttentionView {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
};

// The strides of the mask, in elements; a stride of 0 broadcasts.
struct AttentionMaskView {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t query = 0;
  std::int64_t key = 0;
};

// Operands: Q, K, V, [mask], [lengths: i64, the keys that each batch has], Y.
struct AttentionArgs {
  std::int64_t batch, heads, kv_heads;  // heads / kv_heads consecutive heads of Q share one head of K and V
  std::int64_t queries, keys;
  std::int64_t size, value_size;  // elements in a row of Q and K, and of V and Y
  AttentionView q, k, v, y;
  CacheFormat k_format, v_format;  // the kernels for AMX read f32 only
  std::int32_t k_at, v_at, y_at;   // operands
  AttentionMask mask;
  AttentionRows rows;
  AttentionMaskView mask_view;
  std::int64_t mask_keys;  // keys that the mask covers; further keys are masked
  // Query i attends to keys i + offset - before to i + offset + after; -1: no bound. With lengths, keys beyond the
  // length of the batch are masked, and the offset is the length minus the number of queries.
  std::int32_t lengths_at;  // the operand, or 0
  std::int64_t offset, before, after;
  float scale, softcap;       // softcap 0: none
  bool is_repeatable;         // blocks of keys begin at multiples of their size
  std::int64_t key_block;     // keys whose scores are in scratch at a time
  std::int64_t query_blocks;  // that share a copy of a block of keys, kMaxQueryBlocks at most
  // Of attention_few_f32:
  std::int64_t shared_heads;    // heads of Q that read K and V together, kMaxSharedHeads at most
  std::int64_t units_together;  // of shared heads, whose rows see the same keys and are computed together
  std::int64_t parts;           // into which the keys of a query are divided
  std::int64_t row_scores;      // floats in scratch for the scores of a row's part
  std::int32_t parts_at;        // the temporary [batch, heads, queries, parts] AttentionPart; the next: their sums
};

constexpr std::int64_t kMaxQueryBlocks = 8, kMaxSharedHeads = 8, kMaxRowsTogether = 32, kMaxParts = 64;
// Keys or values that attention_few_f32 reads together, in vectors: it widens this many rows into scratch.
constexpr std::int64_t kRowVectors = 2;

// Whether attention_f32 copies blocks of keys and values, as f32; otherwise, it reads them in place.
static inline bool copies_keys(const AttentionArgs& args) {
  return args.query_blocks > 1 || args.k_format != CacheFormat::kF32 || args.v_format != CacheFormat::kF32;
}

// A part of the keys of a row: the maximum of its scores, and the sum of its numerators relative to that.
struct AttentionPart {
  float largest, total;
  std::int32_t is_seen;  // whether any key was allowed
};

// attention_widen_f32: K or V as f32 [batch][kv_heads][keys][size] in a temporary, for kernels that read f32 only.
struct AttentionWidenArgs {
  std::int64_t batch, kv_heads, keys, size;
  AttentionView from;
  CacheFormat format;
  std::int32_t from_at, to_at;  // operands
};

// Constants of an instruction set that plan building needs.
struct AttentionTraits {
  std::int32_t lanes;
  std::int32_t block_vectors;  // maximum number of vectors in a block of queries
};

}  // namespace engine
