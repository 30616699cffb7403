// Winograd's transforms along one axis (see winograd.hpp). Included by a kernel file only.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kWeightLanes = 16;  // a cache line of results

// The one-dimensional transforms. Interpolation points: 0, 1, -1, infinity for m = 2, and also 2, -2 for m = 4.
template <int kTile>
struct Transform;

template <>
struct Transform<2> {
  static constexpr int kPoints = 4;
  static inline __attribute__((always_inline)) void input(const Vec (&d)[4], Vec (&t)[4]) {
    t[0] = d[0] - d[2];
    t[1] = d[1] + d[2];
    t[2] = d[2] - d[1];
    t[3] = d[1] - d[3];
  }
  static inline __attribute__((always_inline)) void output(const Vec (&m)[4], Vec (&s)[2]) {
    s[0] = m[0] + m[1] + m[2];
    s[1] = m[1] - m[2] - m[3];
  }
  static inline __attribute__((always_inline)) void weights(const double (&g)[3][kWeightLanes],
                                                            double (&u)[4][kWeightLanes]) {
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      u[0][lane] = g[0][lane];
      u[1][lane] = (g[0][lane] + g[1][lane] + g[2][lane]) / 2;
      u[2][lane] = (g[0][lane] - g[1][lane] + g[2][lane]) / 2;
      u[3][lane] = g[2][lane];
    }
  }
};

template <>
struct Transform<4> {
  static constexpr int kPoints = 6;
  static inline __attribute__((always_inline)) void input(const Vec (&d)[6], Vec (&t)[6]) {
    const Vec four = broadcast(4.0f), five = broadcast(5.0f), two = broadcast(2.0f);
    const Vec even = d[4] - four * d[2], odd = d[3] - four * d[1];
    const Vec even2 = d[4] - d[2], odd2 = two * (d[3] - d[1]);
    t[0] = fma(four, d[0], d[4] - five * d[2]);
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = even2 + odd2;
    t[4] = even2 - odd2;
    t[5] = fma(four, d[1], d[5] - five * d[3]);
  }
  static inline __attribute__((always_inline)) void output(const Vec (&m)[6], Vec (&s)[4]) {
    const Vec sum1 = m[1] + m[2], difference1 = m[1] - m[2];
    const Vec sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    s[0] = m[0] + sum1 + sum2;
    s[1] = fma(broadcast(2.0f), difference2, difference1);
    s[2] = fma(broadcast(4.0f), sum2, sum1);
    s[3] = fma(broadcast(8.0f), difference2, difference1) + m[5];
  }
  static inline __attribute__((always_inline)) void weights(const double (&g)[3][kWeightLanes],
                                                            double (&u)[6][kWeightLanes]) {
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      u[0][lane] = g[0][lane] / 4;
      u[1][lane] = -(g[0][lane] + g[1][lane] + g[2][lane]) / 6;
      u[2][lane] = -(g[0][lane] - g[1][lane] + g[2][lane]) / 6;
      u[3][lane] = (g[0][lane] + 2 * g[1][lane] + 4 * g[2][lane]) / 24;
      u[4][lane] = (g[0][lane] - 2 * g[1][lane] + 4 * g[2][lane]) / 24;
      u[5][lane] = g[2][lane];
    }
  }
};

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
