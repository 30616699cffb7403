// How classifiers and regressors of ai.onnx.ml turn sums into scores.
#pragma once

#include <cstdint>

namespace engine {

// The scores of two classes with one sum s: [1 - s, s] or [-s, s].
enum class ScoreComplement : std::int32_t { kNone, kOne, kNegative };
enum class ScoreTransform : std::int32_t { kNone, kSoftmax, kLogistic, kSoftmaxZero, kProbit };

}  // namespace engine
