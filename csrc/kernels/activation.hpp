// Activations on vectors, for the epilogues of kernels. Included by kernel files only.
#pragma once

#include "kernels/tile.hpp"
#include "simd/pointwise.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

ENGINE_INLINE simd::Vec activate(Activation activation, float alpha, float beta, simd::Vec a) {
  using namespace simd;
  [[maybe_unused]] const Vec b = broadcast(alpha), c = broadcast(beta);
  switch (activation) {
#define ENGINE_ACTIVATION(Name, name, sources, cost, ...) \
  case Activation::k##Name:                               \
    return __VA_ARGS__;
#include "pointwise.def"
    case Activation::kCount:
      break;
  }
  return a;
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
// outside the loop, and outside the kernels with many accumulators, whose code size it would multiply.
[[maybe_unused]] ENGINE_NOINLINE void finish_column(const EpilogueArgs& epilogue, int count, float* y,
                                                    std::int64_t y_step, const float* residual,
                                                    std::int64_t residual_step) {
  switch (epilogue.activation) {
#define ENGINE_ACTIVATION(Name, name, sources, cost, ...) \
  case Activation::k##Name:                               \
    return finish_with<Activation::k##Name>(epilogue, count, y, y_step, residual, residual_step);
#include "pointwise.def"
    case Activation::kCount:
      break;
  }
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
