// Matrix products C[M, N] = epilogue(A[M, K] * W[K, N]) with weights of 4 or 8 bits in blocks, each of which has a
// scale.
//
//   W[k, n] = (code[k, n] - zero[k / block, n]) * scale[k / block, n]
//
// Weights are one stream, which each worker reads from its start to its end. A group has 32 columns, and a record for
// each piece of their blocks: a block is divided into pieces of equal length, which is a multiple of 16 and at most
// 256. Other lengths are padded; activations are zero there.
//
//   packed [ceil(N / 32)][ceil(K / block)][pieces] of
//     codes, unsigned       4 bits: [length / 8][32][4], the low half of byte b of k = 8 i + b, the high one of 8 i + 4
//     + b
//                           8 bits: [length / 4][32][4]
//     scales                [32] f16 or f32
//     zero points           [32] u8, unless one number serves all
//
// Activations are multiplied as integers. With three digits, each piece of a row of A is a power of two times integers
// of 24 bits, signed digits of 8 bits, whose products with the codes are summed exactly:
//
//   A[m, k] = unit (d0 2^16 + d1 2^8 + d2)
//
// The rounding error of an element is at most 2^-23 of the largest element of its piece. With one digit, it is 2^-8.
#pragma once

#include "kernels/tile.hpp"

namespace engine {

constexpr std::int64_t kWeightColumns = 32;  // of a group
// Sums of a piece are integers below 2^24 for codes of 8 bits, which are exact in f32.
constexpr std::int64_t kMaxPiece = 256;
constexpr int kMaxDigits = 3;

struct WeightsFormat {
  std::int64_t k, n, block;
  std::int64_t blocks;       // ceil(K / block)
  std::int64_t pieces;       // of a block
  std::int64_t length;       // of a piece
  std::int32_t bits;         // 4 or 8
  std::int32_t scale_bytes;  // 2 (f16) or 4 (f32)
  std::int32_t has_zero_points;
  std::int32_t center;  // the zero point of all codes, unless has_zero_points
};

static inline std::int64_t weight_groups(const WeightsFormat& format) {
  return (format.n + kWeightColumns - 1) / kWeightColumns;
}
static inline std::int64_t weight_records(const WeightsFormat& format) {
  return format.blocks * format.pieces;
}
static inline std::int64_t record_code_bytes(const WeightsFormat& format) {
  return format.length * kWeightColumns * format.bits / 8;
}
static inline std::int64_t record_bytes(const WeightsFormat& format) {
  return record_code_bytes(format) + kWeightColumns * (format.scale_bytes + format.has_zero_points);
}

// The range of K that a record covers, without padding.
static inline WorkRange record_range(const WeightsFormat& format, std::int64_t record) {
  const std::int64_t first = record / format.pieces * format.block, in_block = record % format.pieces * format.length;
  const std::int64_t end = first + format.block < format.k ? first + format.block : format.k;
  const std::int64_t begin = first + in_block < end ? first + in_block : end;
  return {begin, begin + format.length < end ? begin + format.length : end};
}

// The head of a piece of a row of A: its unit, NaN if an element is not finite, and the initial value of the sums of
// its digits with each column, minus their sum times the center; or, for weights with zero points, their sum as f32.
struct PieceStart {
  float unit;
  union {
    std::int32_t starts[kMaxDigits];
    float sums[kMaxDigits];
  };
};

// The digits of a row of A.
struct DigitsLayout {
  std::int32_t digits;     // of an element: 1 or 3
  std::int64_t digits_at;  // [records][digits][length] i8, after [records] PieceStart
  std::int64_t row_bytes;
};

// The number of rows up to which an instruction set multiplies digits with weights of 4 and of 8 bits.
struct WeightsTraits {
  std::int32_t few_rows_4, few_rows_8;
};

struct GemmWeightsArgs {
  std::int64_t m;
  WeightsFormat format;
  DigitsLayout layout;
  std::int64_t row_block;  // consecutive rows that use a group of weights before the next one
  EpilogueArgs epilogue;
  std::int32_t has_bias, has_residual;
  std::int32_t c_at;       // operands: A, W, [bias], [residual], C, [digits]
  std::int32_t digits_at;  // the temporary with the digits of A; 0: each worker makes them in its scratch
};

// The same in f32, for many rows: each worker dequantizes a group of columns, and multiplies it with all rows of a
// block by the tiles of tile.hpp. They read A in blocks, [ceil(K / 16)][rows][16], separately for each tile of rows,
// which an earlier phase makes.
struct GemmDequantizedArgs {
  std::int64_t m;
  WeightsFormat format;
  std::int32_t pixels;     // the maximum number of rows of a tile
  std::int64_t row_block;  // consecutive tiles that use a group of weights before the next one
  std::int64_t chunk;      // rows of weights that are dequantized at once, a multiple of 16
  EpilogueArgs epilogue;
  std::int32_t has_bias, has_residual;
  std::int32_t c_at;  // operands: A, W, [bias], [residual], C, A in blocks
  std::int32_t panel_at;
};

// Packing: codes [K, N] of one byte each, to which `flip` is applied by exclusive or, scales [blocks, N] f32, and zero
// points [blocks, N] of one byte each if present.
struct PackWeightsArgs {
  WeightsFormat format;
  std::int32_t flip;
  // Of a column of codes of 4 or 8 bits, the first of a byte in its low half; 0: codes are [K][N], a byte each.
  std::int64_t column_bytes;
};

}  // namespace engine
