// Activations on vectors, for the epilogues of kernels. Included by kernel files only.
#pragma once

#include "kernels/tile.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

ENGINE_INLINE simd::Vec activate(Activation activation, float alpha, float beta, simd::Vec x) {
  using namespace simd;
  switch (activation) {
    case Activation::kClip:
      return min(broadcast(beta), max(broadcast(alpha), x));
    case Activation::kLeakyRelu:
      return x < 0.0f ? alpha * x : x;
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kTanh:
      return tanh(x);
    case Activation::kGeluErf:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return x * sigmoid(alpha * x);
    case Activation::kHardSigmoid:
      return min(broadcast(1.0f), max(zero(), alpha * x + beta));
    case Activation::kHardSwish:
      return x * min(broadcast(1.0f), max(zero(), alpha * x + beta));
    case Activation::kElu:
      return x < 0.0f ? alpha * exp_minus_one(x) : x;
    case Activation::kMish: {
      // tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2), and rounds to 1 in f32 from x = 20. NaN passes the bound.
      const Vec e = exp(min(broadcast(20.0f), x)), n = e * (e + 2.0f);
      return x * (n / (n + 2.0f));
    }
    case Activation::kCount:
      break;
  }
  return x;
}

template <Activation kActivation>
ENGINE_NOINLINE void finish_with(const EpilogueArgs& epilogue, int count, float* y, std::int64_t y_step,
                                 const float* residual, std::int64_t residual_step) {
  using namespace simd;
  for (int i = 0; i < count; ++i, y += y_step) {
    Vec value = activate(kActivation, epilogue.alpha, epilogue.beta, load(y));
    if (residual) value += load(residual + i * residual_step);
    store(y, value);
  }
}

// Activates `count` vectors in place, y_step floats apart, and then adds a residual (unless null). The switch is
// outside the loop, and outside the kernels with their many accumulators, whose code size it would multiply.
[[maybe_unused]] ENGINE_NOINLINE void finish_column(const EpilogueArgs& epilogue, int count, float* y,
                                                    std::int64_t y_step, const float* residual,
                                                    std::int64_t residual_step) {
#define ENGINE_FINISH(name) \
  case Activation::name:    \
    return finish_with<Activation::name>(epilogue, count, y, y_step, residual, residual_step)
  switch (epilogue.activation) {
    ENGINE_FINISH(kClip);
    ENGINE_FINISH(kLeakyRelu);
    ENGINE_FINISH(kSigmoid);
    ENGINE_FINISH(kTanh);
    ENGINE_FINISH(kGeluErf);
    ENGINE_FINISH(kGeluTanh);
    ENGINE_FINISH(kSilu);
    ENGINE_FINISH(kHardSigmoid);
    ENGINE_FINISH(kHardSwish);
    ENGINE_FINISH(kElu);
    ENGINE_FINISH(kMish);
    case Activation::kCount:
      break;
  }
#undef ENGINE_FINISH
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
