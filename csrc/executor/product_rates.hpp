// How fast this CPU multiplies bf16 by vector instructions.
#pragma once

#include <optional>

namespace engine {

// Multiplications of one core in a nanosecond: with operands of f32, and of pairs of bf16.
struct ProductRates {
  double f32, bf16;
};

// Measured once, in some tenths of a millisecond; none if the CPU has no such instruction. CPUs with the same feature
// differ by four: on Intel's, products of bf16 take twice the time of those of f32, on AMD's half.
std::optional<ProductRates> product_rates();

}  // namespace engine
