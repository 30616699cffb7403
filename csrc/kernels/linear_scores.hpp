// Linear classifiers and regressors: products of rows and a few vectors, and the scores and labels made of them.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"
#include "kernels/row_blocks.hpp"
#include "kernels/score_codes.hpp"

namespace engine {

struct LinearScoreArgs {
  ElementCode type;     // of the rows: f32, f64, i32, i64
  ElementCode compute;  // f32, f64
  ElementCode result;   // f32, f64: of the scores
  std::int64_t rows, features;
  std::int64_t targets;  // products of a row
  std::int64_t blocks;   // of vectors
  std::int64_t columns;  // of the scores: targets, or 2 with a complement
  std::int64_t chunk;    // rows whose scores are transformed together
  bool has_labels;
  ScoreComplement complement;
  ScoreTransform transform;
};

}  // namespace engine
