// A program of elementwise operations over one iteration space, run strip by strip: one pass over memory.
//
// Four families share this header: `elementwise` is the interpreter; `elementwise_f32`, `elementwise_scalar` and
// `elementwise_cast` implement single instructions over one strip, as tables in which prepare looks up functions. A
// table is the traits of a kernel entry, which has no function.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

// One instruction over one strip. A source whose step is 0 is one vector of 64 bytes with equal elements.
struct StripCall {
  void* y;
  const void* a;
  const void* b;
  const void* c;
  std::int64_t count;
  std::int64_t a_step, b_step, c_step;  // 0 or 1
};
using StripFn = void (*)(const StripCall& call);

// The operations of one element type; null if there is none.
struct StripTable {
  StripFn run[kOpcodes];
  bool takes_step[kOpcodes];  // sources may have step 0, except for conditions; otherwise every step must be 1
};
// Floating-point types of 4 to 8 bits, in a byte each: their values are u8 in programs, and casts state the format. The
// bias is 1 less the exponent of the least normal number.
constexpr std::int64_t small_format(int exponent_bits, int mantissa_bits, int bias) {
  return exponent_bits | mantissa_bits << 4 | bias << 8;
}
// Casts to powers of two with 8 bits of exponent also state how they round the magnitude; `nearest` rounds ties up.
// Magnitudes below 2^-127 or above 2^127 become NaN, or that end of the range if the cast saturates. NaN stays NaN.
enum class PowerRounding { kDown = 1, kUp = 2, kNearest = 3 };
constexpr std::int64_t power_format(PowerRounding rounding, bool saturates) {
  return small_format(8, 0, 128) | static_cast<std::int64_t>(rounding) << 16 | (saturates ? 1 : 0) << 18;
}
struct SmallCasts {
  std::int64_t format;
  StripFn to_f32, from_f32, from_f64;  // null if there is none
};
constexpr int kSmallFormats = 14;
struct CastTable {
  StripFn run[kElementCodes][kElementCodes];  // [from][to]
  SmallCasts small[kSmallFormats];
};

constexpr int kElementwiseMaxRank = 8;
constexpr int kElementwiseMaxSlots = 256;  // operands, constants and intermediate values of one program
constexpr int kSplatBytes = 64;

// An operand over the box of one strip: contiguous there (read in place), one value, or copied out of its strides.
enum class OperandForm : std::int32_t { kDirect, kUniform, kExpanded };

struct ElementwiseInput {
  OperandForm form;
  std::int32_t slot, bytes;                        // of one element
  std::int32_t fill;                               // kUniform: the number of equal elements that the instructions need
  std::int64_t scratch;                            // offset, unless kDirect
  std::int64_t outer_stride[kElementwiseMaxRank];  // bytes, for each outer dimension
  std::int64_t chunk_stride;                       // bytes, for each unit along the chunked dimension
  // kExpanded: the strip as extents[0] * units elements with stride strides[0], each with the inner dimensions.
  std::int32_t box_rank;
  std::int64_t extents[kElementwiseMaxRank];
  std::int64_t strides[kElementwiseMaxRank];  // bytes
};

struct ElementwiseConstant {
  std::int32_t slot, bytes, fill;
  std::int64_t scratch;
  std::int64_t bits;
};

struct ElementwiseRegister {
  std::int32_t slot;
  std::int64_t scratch;
};

struct ElementwiseOutput {
  std::int32_t slot, bytes;
};

struct ElementwiseInstruction {
  StripFn run;
  std::int32_t y, a, b, c;  // slots
  std::int64_t a_step, b_step, c_step;
};

// The head of the argument block; the arrays follow it, in the order of their counts. The output is, in row-major
// order, [outer..., chunked dimension, unit]; a strip is `chunk` units of one outer index.
struct ElementwiseArgs {
  std::int32_t input_count, constant_count, register_count, output_count, instruction_count;
  std::int32_t outer_rank;
  std::int64_t outer[kElementwiseMaxRank];
  std::int64_t length;  // of the chunked dimension
  std::int64_t chunk;   // units in a strip, except for the last strip of an outer index
  std::int64_t chunks;  // strips for each outer index
  std::int64_t unit;    // elements
  std::int64_t strips;
};

}  // namespace engine
