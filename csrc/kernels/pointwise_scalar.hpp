// The functions that the expressions of pointwise.def call, on double. They have internal linkage, since files for one
// instruction set include them, too.
#pragma once

#include <cmath>

namespace engine::scalar {
namespace {

inline double real(double value) {
  return value;
}
inline double mul_add(double x, double y, double z) {
  return x * y + z;
}
inline double relu(double x) {
  return x < 0 ? 0 : x;
}
template <class T>
inline T clip(T x, T low, T high) {
  return (x < low ? low : x) > high ? high : (x < low ? low : x);
}
inline double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}
inline double swish(double x, double beta) {
  return x / (1 + exp(-(x * beta)));
}
inline double hard_swish(double x) {
  return x * clip(x / 6 + 0.5, 0.0, 1.0);
}
inline double mish(double x) {
  return x * tanh(relu(x) + log1p(exp(-fabs(x))));
}
inline double gelu(double x) {
  return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
}
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

}  // namespace
}  // namespace engine::scalar
