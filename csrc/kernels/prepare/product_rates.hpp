// How fast this CPU multiplies bf16 by vector instructions.
#pragma once

#include <optional>

#include "kernels/prepare.hpp"

namespace engine {

// Multiplications of one core in a nanosecond: with operands of f32, and of pairs of bf16.
struct ProductRates {
  double f32, bf16;
};

// Measured once, in a few tenths of a millisecond; empty if the instruction set has no such instruction. CPUs with the
// same feature differ by a factor of four: products of bf16 take twice as long as products of f32 on Intel's CPUs, and
// half as long on AMD's.
std::optional<ProductRates> product_rates(const KernelLookup& kernels);

}  // namespace engine
