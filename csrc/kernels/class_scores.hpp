// Scores of one row: transformations of sums, and the greatest one.
#pragma once

#include <cmath>

#include "kernels/kernel.hpp"
#include "kernels/score_codes.hpp"
#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

ENGINE_INLINE float exponential(float x) {
  return expf(x);
}
ENGINE_INLINE double exponential(double x) {
  return exp(x);
}

template <class C>
C logistic(C x) {
  const C positive = C(1) / (C(1) + exponential(x < 0 ? x : -x));
  return x < 0 ? C(1) - positive : positive;
}

// The quantile of the normal distribution, by Winitzki's approximation of the inverse error function.
double probit(double share) {
  const double x = 2 * share - 1, logarithm = log((1 - x) * (1 + x));
  const double middle = 2 / (3.14159265358979323846 * 0.147) + 0.5 * logarithm;
  return 1.41421356 * copysign(sqrt(-middle + sqrt(middle * middle - logarithm / 0.147)), x);
}

template <class C>
void softmax(C* scores, std::int64_t count, bool keeps_zeros) {
  C most = scores[0], total = 0;
  for (std::int64_t i = 1; i < count; ++i) most = scores[i] > most ? scores[i] : most;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_zero = scores[i] <= C(1e-7) && scores[i] >= C(-1e-7);
    scores[i] = keeps_zeros && is_zero ? scores[i] * exponential(-most) : exponential(scores[i] - most);
    total += scores[i];
  }
  for (std::int64_t i = 0; i < count; ++i) scores[i] = total == 0 ? C(0.5) : scores[i] / total;
}

template <class C>
void transform(ScoreTransform function, std::int64_t columns, C* scores) {
  switch (function) {
    case ScoreTransform::kLogistic:
      for (std::int64_t i = 0; i < columns; ++i) scores[i] = logistic(scores[i]);
      break;
    case ScoreTransform::kProbit:
      for (std::int64_t i = 0; i < columns; ++i) scores[i] = static_cast<C>(probit(scores[i]));
      break;
    case ScoreTransform::kSoftmax:
    case ScoreTransform::kSoftmaxZero:
      softmax(scores, columns, function == ScoreTransform::kSoftmaxZero);
      break;
    default:
      break;
  }
}

// The position of the greatest score, the first of equal ones; the first NaN if there is one. Without branches, since
// classes are as good as random.
template <class C>
ENGINE_INLINE std::int64_t greatest(const C* scores, std::int64_t count) {
  std::int64_t best = 0;
  C most = scores[0];
  for (std::int64_t i = 1; i < count; ++i) {
    const C score = scores[i];
    const bool is_more = (most == most) & ((score > most) | (score != score));
    best = is_more ? i : best;
    most = is_more ? score : most;
  }
  return best;
}

// The scores of two classes from scores[0].
template <class C>
ENGINE_INLINE void complement(ScoreComplement form, C* scores) {
  if (form == ScoreComplement::kNone) return;
  scores[1] = scores[0];
  scores[0] = form == ScoreComplement::kOne ? C(1) - scores[0] : -scores[0];
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
