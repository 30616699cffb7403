// Support vector machines: sums of kernels of a row and each support vector, votes of pairs of classes, probabilities.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"
#include "kernels/row_blocks.hpp"

namespace engine {

constexpr std::int64_t kSupportChunk = 32;  // rows that a worker takes through all vectors, at most
constexpr std::int64_t kLargestDegree = 16;

enum class SupportKernel : std::int32_t { kLinear, kPolynomial, kRbf, kSigmoid };

// The results: the sum; 1 or -1 by its sign; the margins of pairs of classes, and the class with the most votes; the
// probabilities of classes, and the class with the most votes.
enum class SupportMode : std::int32_t { kSum, kSign, kVote, kProbability };

// Each class has `spans[class]` vectors in blocks of its own, and `coefficients` of each vector.
struct SupportArgs {
  ElementCode type;     // of the rows: f32, f64, i32, i64
  ElementCode compute;  // f32, f64
  SupportKernel kernel;
  SupportMode mode;
  double gamma, coef0;
  std::int64_t degree;
  std::int64_t rows, features;
  std::int64_t blocks;        // of support vectors
  std::int64_t classes;       // 1 for kSum and kSign
  std::int64_t coefficients;  // of a vector: classes - 1, at least 1
  std::int64_t pairs;         // of classes, at least 1
  std::int64_t columns;       // of the scores
  std::int64_t chunk;         // rows
};

// The elements of a worker's memory: doubles first, then elements of the type that it computes in.
struct SupportScratch {
  std::int64_t doubles, rows, sums, partial, margins;
};

static inline SupportScratch support_scratch(const SupportArgs& args) {
  const bool has_probabilities = args.mode == SupportMode::kProbability;
  const std::int64_t votes = args.classes;
  return {votes + (has_probabilities ? 2 * args.classes * (args.classes + 1) : 0), args.chunk * args.features,
          args.chunk * args.classes * args.coefficients, args.chunk * args.coefficients * kRowBlock, args.pairs};
}

}  // namespace engine
