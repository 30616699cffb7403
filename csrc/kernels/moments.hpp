// Mean and centred sum of squares of parts of a tensor, and of their union. Included by kernel files only.
//
// The mean is computed first and the squares are of differences from it, so that the variance does not suffer from
// cancellation if the mean is large. Each part is small enough to be read a second time from the L1 cache.
#pragma once

#include "kernels/kernel.hpp"
#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Floats of a part: 16 KB.
constexpr std::int64_t kMomentsPart = 4096;

struct Moments {
  double count;
  double mean;
  double squares;  // the sum of (x - mean)^2
};

float row_sum(const float* x, std::int64_t count) {
  using namespace simd;
  Vec total[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int u = 0; u < 4; ++u) total[u] += load(x + i + u * kLanes);
  for (; i + kLanes <= count; i += kLanes) total[0] += load(x + i);
  if (i < count) total[1] += load_partial(x + i, count - i, zero());
  return reduce_add((total[0] + total[1]) + (total[2] + total[3]));
}

// The sum of (x - center)^2.
float row_squares(const float* x, float center, std::int64_t count) {
  using namespace simd;
  const Vec middle = broadcast(center);
  Vec total[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int u = 0; u < 4; ++u) {
      const Vec d = load(x + i + u * kLanes) - middle;
      total[u] = fma(d, d, total[u]);
    }
  for (; i + kLanes <= count; i += kLanes) {
    const Vec d = load(x + i) - middle;
    total[0] = fma(d, d, total[0]);
  }
  if (i < count) {
    const Vec d = load_partial(x + i, count - i, middle) - middle;
    // An infinite or NaN center makes the lanes beyond the row NaN, which does no harm: the row's lanes are NaN, too.
    total[1] = fma(d, d, total[1]);
  }
  return reduce_add((total[0] + total[1]) + (total[2] + total[3]));
}

// Adds `part`, which must not overlap `all`.
ENGINE_INLINE void merge(Moments& all, const Moments& part) {
  const double count = all.count + part.count;
  if (count == 0.0) return;
  const double delta = part.mean - all.mean, share = part.count / count;
  all.squares += part.squares + delta * delta * all.count * share;
  all.mean += delta * share;
  all.count = count;
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
