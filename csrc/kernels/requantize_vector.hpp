// `RequantizeArgs` applied to vectors. Included by kernel files only.
#pragma once

#include "kernels/activation.hpp"
#include "kernels/requantize.hpp"
#include "simd/bytes.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Rounds half to even where |x| is below 2^22; larger values saturate in what follows.
ENGINE_INLINE simd::Vec round_within(simd::Vec low, simd::Vec high, simd::Vec x) {
  return simd::to_floats(simd::round_to_ints(simd::min(high, simd::max(low, x))));
}

// kLanes values of the residual in f32.
ENGINE_INLINE simd::Vec load_residual(const RequantizeArgs& args, const char* from) {
  if (args.residual == ElementCode::kF32) return simd::load(reinterpret_cast<const float*>(from));
  const std::int32_t flip = args.residual == ElementCode::kI8 ? 128 : 0;
  return simd::load_bytes(reinterpret_cast<const std::uint8_t*>(from), flip) -
         (args.residual_zero_point + static_cast<float>(flip));
}

// Everything after the sum is scaled, for kLanes values: `residual` is null or points to their residual.
ENGINE_INLINE void requantize(const RequantizeArgs& args, simd::Vec value, const char* residual, char* y) {
  using namespace simd;
  if (args.has_middle)
    value = round_within(broadcast(args.middle_low), broadcast(args.middle_high), value) * args.middle_scale;
  if (residual) value = fma(load_residual(args, residual), broadcast(args.residual_scale), value);
  if (args.epilogue.activation != Activation::kClip) {
    float lanes[kLanes];
    store(lanes, value);
    finish_column(args.epilogue, 1, lanes, kLanes, nullptr, 0);
    value = load(lanes) * args.factor;
  }
  if (args.y == ElementCode::kF32) {
    if (args.epilogue.activation == Activation::kClip)
      value = min(broadcast(args.epilogue.beta), max(broadcast(args.epilogue.alpha), value));
    store(reinterpret_cast<float*>(y), value);
    return;
  }
  const VecInt codes = round_to_ints(min(broadcast(args.high), max(broadcast(args.low), value)));
  store_bytes(reinterpret_cast<std::uint8_t*>(y), codes + args.zero_point);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
