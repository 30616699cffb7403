// Convolution on the tiles of AMX, of maps in bf16 and of bytes, as a product of a matrix whose rows are pixels.
#pragma once

#include "kernels/conv.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// Operands: those of conv_bf16.cpp or conv_int8.hpp with weights as pack_amx.hpp describes; last, the temporary.
//
// The kernel copies x, with its padding, to where a row of a tile is 64 adjacent bytes:
//
//   [image][row phase][column phase][block of 64 bytes of channels][row][pixel][64]
//
// Either a phase of its own copies whole images; or, where weights are small beside a map, each worker copies strips of
// its rows and multiplies them while they are in its L2 cache.
//
// Pixels that are a stride apart follow each other, in as many phases as the stride is long and the kernel needs. So
// the rows of the result are one sequence of pixels, for each tap; results at the end of a row are dropped.
//
// A plain x of up to four channels has 4 values a pixel, [image][row phase][row][pixel][4]: a step is a kernel row, and
// the pixels of a tile overlap. Weights are then [out, kernel height, kernel width, 4], zero beyond the channels.
struct ConvAmxArgs {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;      // of bf16
  RequantizeArgs requantize;  // of bytes
  PackArgs pack;
  std::int64_t x_batch, y_batch, residual_batch;  // elements between images
  std::int64_t phases_h, phases_w;
  std::int64_t blocks;     // of channels in the copy
  std::int64_t rows, row;  // of a block in the copy of an image or a strip: rows, and bytes of a row
  std::int64_t pixel;      // bytes between adjacent pixels of the result in the copy
  std::int64_t virtual_w;  // pixels of a row of the result, with the dropped ones
  std::int64_t y_first, y_row, y_pixel, y_plane;  // of the result, in pixels of its map: offset, steps, all
  std::int64_t w_offset;                          // bytes
  std::int64_t strip_h;                           // rows of the result that a strip makes
  std::int64_t strip_bytes;                       // of the copy of a strip; 0: a phase copies images
  std::int32_t y_bytes, residual_bytes;
  std::int32_t y_at, copy_at;  // indices of buffers
  std::int32_t value_bytes;    // of x: 1; 2; 4 for a plain x of f32
  std::uint8_t padding;        // the value of padding in bytes of x; for bf16, 0
  bool is_plain;
};

// The steps of depth.
static inline std::int64_t conv_amx_steps(const ConvAmxArgs& args) {
  return std::int64_t{args.pack.blocks} * args.pack.rows * args.pack.cols;
}

// The rows of the product that makes `out_h` rows of the result, rounded up to a multiple of 32.
static inline std::int64_t conv_amx_rows(const ConvAmxArgs& args, std::int64_t out_h) {
  return ((out_h - 1) * args.virtual_w + args.shape.out_w + 31) / 32 * 32;
}

}  // namespace engine
