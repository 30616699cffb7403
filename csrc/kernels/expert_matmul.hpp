// Products of rows with the matrices of the experts that are chosen for them:
//
//   y[t, j, n] = sum_k W[e, n, k] * x[t, j, k] + bias[e, n]        with e = experts[t, j]
//
// Weights are read as files have them, so that they may be mapped: a matrix has the columns of a usual product as its
// rows, [N, K] of f32, f16 or bf16, or of codes of 4 or 8 bits along K, the first in the low bits, with a scale for
// each block of a row. Only the matrices of chosen experts are read, each once for all of its rows.
//
// With codes, activations are multiplied as integers (see gemm_weights.hpp): a row of x is a unit times integers of 24
// bits (three digits) or of 8 bits (one). The rounding error of an element is at most 2^-23, or 2^-8, of the largest
// one of its row. A chunk is the codes of one vector register. A lane multiplies 32 bits of codes, which are in one
// block.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

// How far ahead of their use weights are prefetched, in bytes: the hardware does not read across pages.
constexpr std::int64_t kExpertAhead = 4096;
// Weights are in the small pages of a file. How far ahead a page is touched, so that its address is known by then.
constexpr std::int64_t kExpertPage = 4096, kExpertPagesAhead = 3 * kExpertPage;
// The index of an expert that could not be chosen, since the router's values are NaN (NO_EXPERT in Python). The fault
// is this number plus the row.
constexpr std::int64_t kNoExpert = INT64_MIN;
static inline bool is_no_expert(std::int64_t fault) {
  return fault < kNoExpert + (std::int64_t{1} << 32);
}
constexpr int kExpertDigits = 3;
constexpr int kExpertLanes = 16;              // of the largest vector register
constexpr std::int64_t kExpertDigitsAt = 64;  // of a row of x, behind its unit
// Columns that one worker computes: results in the same cache line.
constexpr std::int64_t kExpertColumns = 16;

// Codes of a lane, which must be in one block.
static inline std::int64_t codes_of_lane(std::int32_t bits) {
  return 32 / bits;
}

struct ExpertTraits {
  std::int32_t vector_bytes;
};

// How the blocks of a row of codes lie in chunks.
enum class ExpertBlocks : std::int32_t {
  kOfChunks,   // each has whole chunks, or all of the row
  kInChunks,   // each chunk has whole ones
  kIrregular,  // any, but a lane has one
};

struct ExpertMatmulArgs {
  std::int64_t tokens, ways;  // ways: experts of a token
  std::int64_t x_ways;        // rows of a token: one, or one for each expert
  std::int64_t experts, n, k;
  std::int32_t index_bytes;  // 4 or 8
  std::int32_t bits;         // of a code; 0: numbers
  ElementCode weights;       // without codes: f32, f16 or bf16; the products are computed in f32
  std::int64_t block, blocks;
  std::int64_t scales_ahead;  // scales of the codes that are prefetched
  ExpertBlocks layout;
  std::int64_t in_chunk, chunks_of_block;  // blocks of a chunk with kInChunks, and chunks of a block with kOfChunks
  std::int32_t lane_blocks[kExpertLanes];  // with kInChunks: the block of each lane, from the first one of the chunk
  std::int32_t digits;                     // of an activation: 1 or 3
  std::int32_t has_zero_points, has_bias;
  std::int64_t row_weights, row_zero_points;  // bytes of a row
  std::int64_t chunk, chunks;                 // codes of a chunk; chunks of a row
  std::int64_t digit_row;  // bytes of a row of x as digits: the unit, padded, and [chunks] of the sums of its lanes and
                           // [digits][chunk] bytes
  std::int32_t y_at;       // operands: x, experts, W, [scales], [zero points], [bias], y, order, [digits]
};

}  // namespace engine
