// Reads the attributes of an integer kernel's epilogue (requantize.hpp).
//
//   y (f32): the type of the result: u8, i8, i32, f32     zero_point (0): of the result
//   residual_type (f32): u8, i8, f32                      residual_scale (1)
//   residual_zero_point (0)
//   factor (1)                                            middle: [low, high, scale], if there is one
//   pairs_fit (0): whether no sum of two adjacent products of weights and any u8 exceeds 16 bits
//   activation, alpha, beta: as in convolutions, in units of the result if the activation is clip
#pragma once

#include "kernels/prepare.hpp"
#include "kernels/requantize.hpp"

namespace engine {

RequantizeArgs read_requantize(const Attributes& attributes);

bool read_pairs_fit(const Attributes& attributes);

// Reads a zero point of u8.
std::uint8_t read_input_zero_point(const Attributes& attributes);

}  // namespace engine
