// A program of elementwise operations over one iteration space, run strip by strip: one pass over memory.
//
// Four families share this header: `elementwise` is the interpreter, `elementwise_f32`, `elementwise_scalar` and
// `elementwise_cast` hold what one instruction does to one strip, as tables that prepare looks functions up in. Their
// rows have no function of their own: a table is an entry's traits.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Numbers are part of the step's attributes: append, never renumber.
enum class ElementCode : std::int32_t {
  kF32 = 0,
  kF64 = 1,
  kI8 = 2,
  kU8 = 3,
  kI32 = 4,
  kI64 = 5,
  kBool = 6,  // one byte, 0 or 1
  kF16 = 7,   // storage only: Copy, Where, casts
  kBF16 = 8,  // storage only
};
constexpr int kElementCodes = 9;

constexpr int element_bytes(ElementCode code) {
  constexpr int kBytes[kElementCodes] = {4, 8, 1, 1, 4, 8, 1, 2, 2};
  return kBytes[static_cast<int>(code)];
}

// What an instruction computes of its sources a, b, c, all of the instruction's type unless said otherwise. Integers
// wrap. A NaN in a source of an f32 or f64 operation makes the result NaN, apart from comparisons, ThresholdedRelu and
// Shrink, which a NaN passes as a value that no threshold is below, and the bounds of Clip.
enum class Opcode : std::int32_t {
  kCopy = 0,
  // One source.
  kNeg = 1,
  kAbs = 2,
  kSign = 3,
  kRelu = 4,
  kSqrt = 5,
  kReciprocal = 6,
  kExp = 7,
  kLog = 8,
  kErf = 9,
  kTanh = 10,
  kSigmoid = 11,
  kSoftplus = 12,
  kSoftsign = 13,
  kMish = 14,
  kHardSwish = 15,
  kGelu = 16,  // by erf
  kGeluTanh = 17,
  kFloor = 18,
  kCeil = 19,
  kRound = 20,  // ties to even
  kSin = 21,
  kCos = 22,
  kTan = 23,
  kAsin = 24,
  kAcos = 25,
  kAtan = 26,
  kSinh = 27,
  kCosh = 28,
  kAsinh = 29,
  kAcosh = 30,
  kAtanh = 31,
  kIsNan = 32,          // bool
  kIsPositiveInf = 33,  // bool
  kIsNegativeInf = 34,  // bool
  kNot = 35,            // of bool
  kBitNot = 36,
  // Two sources.
  kAdd = 40,
  kSub = 41,
  kMul = 42,
  kDiv = 43,   // integers: towards zero; 0 where b is 0
  kPow = 44,   // integers: 0 for a negative exponent, unless |a| is 1
  kMod = 45,   // integers: sign of b; 0 where b is 0
  kFmod = 46,  // sign of a; integers: 0 where b is 0
  kMin = 47,
  kMax = 48,
  kPrelu = 49,            // b * a below zero
  kElu = 50,              // b * (e^a - 1) below zero
  kCelu = 51,             // b * (e^(a / b) - 1) below zero
  kThresholdedRelu = 52,  // a above b, else 0
  kSwish = 53,            // a * sigmoid(b * a)
  kEqual = 54,            // bool
  kLess = 55,             // bool
  kLessOrEqual = 56,      // bool
  kAnd = 57,              // of bool
  kOr = 58,               // of bool
  kXor = 59,              // of bool
  kBitAnd = 60,
  kBitOr = 61,
  kBitXor = 62,
  kShiftLeft = 63,   // zero where b is the number of bits or more
  kShiftRight = 64,  // zero where b is the number of bits or more
  // Three sources.
  kWhere = 70,        // b where a, a bool, is true, else c
  kClip = 71,         // min(max(a, b), c)
  kSelu = 72,         // c * (a above zero, else b * (e^a - 1))
  kHardSigmoid = 73,  // b * a + c within 0 and 1
  kShrink = 74,       // with lambda b and bias c
  kMulAdd = 75,       // a * b + c, rounded once where the machine can
  // kCast + the target's ElementCode. From real to integer: towards zero, saturating, 0 of NaN. To bool: is not zero.
  // To a narrower real: to nearest, ties to even. From integer to narrower integer: wraps.
  kCast = 100,
};
constexpr int kOpcodes = 76;

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

// The operations of one element type; null where there is none.
struct StripTable {
  StripFn run[kOpcodes];
  bool takes_step[kOpcodes];  // sources of the table's own type may have step 0; otherwise every step has to be 1
};
struct CastTable {
  StripFn run[kElementCodes][kElementCodes];  // [from][to]
};

constexpr int kElementwiseMaxRank = 8;
constexpr int kElementwiseMaxSlots = 256;  // operands, constants and intermediate values of one program
constexpr int kSplatBytes = 64;

// An operand over the box of one strip: contiguous there (read in place), one value, or copied out of its strides.
enum class OperandForm : std::int32_t { kDirect, kUniform, kExpanded };

struct ElementwiseInput {
  OperandForm form;
  std::int32_t slot, bytes;                        // of one element
  std::int32_t fill;                               // kUniform: how many equal elements the instructions need
  std::int64_t scratch;                            // offset, unless kDirect
  std::int64_t outer_stride[kElementwiseMaxRank];  // bytes, for each outer dimension
  std::int64_t chunk_stride;                       // bytes, for each unit along the chunked dimension
  // kExpanded: the strip as extents[0] * units elements of strides[0], each with what lies inside it.
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
  std::int64_t chunk;   // units a strip, but for the last one of an outer index
  std::int64_t chunks;  // strips for each outer index
  std::int64_t unit;    // elements
  std::int64_t strips;
};

}  // namespace engine
