// Products of few rows of bf16, whose time is that of reading B.
#pragma once

#include "kernels/gemm_tiled.hpp"

namespace engine {

// The columns of a tile, at most, and the length of rows up to which A in f32 stays in the L2 cache.
constexpr std::int64_t kMaxFewColumns = 32;
constexpr std::int64_t kMaxFewDepth = 16 * 1024;

// Operands as of gemm_bf16, without the copy of A. There are at most kFewRows rows, and all matrices are rows.
struct GemmFewArgs {
  GemmBf16Args gemm;
  bool is_for_amx;  // B is packed as pack_amx.hpp says, otherwise as tile_bf16.hpp does
};

// The elements between rows of A in scratch; those beyond K are zero, up to the end of B's last step. For K = 0, B has
// a step.
static inline std::int64_t few_row(std::int64_t k) {
  return k == 0 ? 32 : (k + 31) / 32 * 32;
}

// Each worker keeps the sums of a tile, and A.
static inline std::int64_t few_scratch_bytes(const GemmBf16Args& args) {
  return 4 * (kFewRows * kMaxFewColumns + args.m * few_row(args.k));
}

}  // namespace engine
