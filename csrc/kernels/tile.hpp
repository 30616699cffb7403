// The register-tiled product on which convolution, GEMM and Winograd are based.
//
// A tile is `vectors` x `pixels` accumulators that stay in registers through the whole reduction: each input value is
// broadcast and multiplied with `vectors` vectors of output channels. Partial sums of a tile never touch memory.
//
//   y[c, p] = epilogue(sum over block, row, col, d of  x[block, row, col, p, d] * w[block, row, col, d, c])
//
// The reduction runs over `blocks` outermost, then `rows` x `cols` kernel taps, then `depth` adjacent floats of x
// (`last_depth` in the last block). Weights are read sequentially in that order: `vectors` * lanes floats for each
// step. So one tile is
//   a convolution on NCHWc16   blocks: input channels / 16, rows x cols: the kernel, depth: 16
//   a product of matrices      blocks: K / 16, one tap, depth: 16; pixels are the rows of A
//   a convolution on NCHW      blocks: input channels, rows: the kernel's, one col, depth: the kernel's width
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"
#include "simd/isa.hpp"

namespace engine {

// value = accumulator * scale[c] + bias[c] + residual, activated; or the residual added after the activation.
struct EpilogueArgs {
  Activation activation = Activation::kClip;
  float alpha = -__builtin_inff();
  float beta = __builtin_inff();
  bool residual_after = false;
};

// A pointer to elements whose size is known when the plan is built.
template <class Byte>
struct SizedPointer {
  Byte* data;
  std::int32_t element_bytes;
};
template <class Byte>
ENGINE_INLINE SizedPointer<Byte> operator+(SizedPointer<Byte> pointer, std::int64_t elements) {
  return {pointer.data + elements * pointer.element_bytes, pointer.element_bytes};
}

// The pointers of a call to the elements of a map, of a type that is fixed, or has `element_bytes` bytes.
template <class Element>
ENGINE_INLINE void set_map(Element*& map, void* data, std::int32_t /*element_bytes*/) {
  map = static_cast<Element*>(data);
}
template <class Byte>
ENGINE_INLINE void set_map(SizedPointer<Byte>& map, void* data, std::int32_t element_bytes) {
  map = {static_cast<Byte*>(data), element_bytes};
}

// One call of a tile kernel: `Element` is the type of x and w, `Map` and `ConstMap` are the pointers to y and the
// residual. Strides are in elements. No other elements are read or written; x, w and y need only the alignment of an
// element. The residual may be y itself; x and w must not overlap y.
template <class Element, class Map, class ConstMap>
struct TileCallOf {
  using ElementType = Element;
  const Element* x;             // first pixel, first tap, first block
  std::int64_t x_block;         // between blocks
  std::int64_t x_pixel;         // PixelStep::kRows: between pixels, which are rows of a matrix
  std::int64_t x_row;           // between kernel rows
  std::int64_t x_col;           // between kernel columns
  const std::int64_t* offsets;  // indirect kernels: [rows * cols][pixels] offsets of x, kPaddingOffset if the tap
                                // lies in the padding (x_row, x_col are then unused)
  const Element* w;             // the tile's weights
  std::int64_t w_block;         // between blocks
  std::int64_t w_lead;          // from a block's start to its first tap that is not skipped; in the last block,
  std::int64_t w_lead_last;     // whose depth may be smaller, w_lead_last
  std::int32_t blocks;
  std::int32_t rows;
  std::int32_t cols;
  std::int32_t depth;
  std::int32_t last_depth;
  Map y;                 // first pixel, first channel
  std::int64_t y_block;  // between blocks of 16 channels
  std::int64_t y_pixel;  // between pixels
  const float* scale;    // [vectors * lanes], or null
  const float* bias;     // [vectors * lanes], or null
  ConstMap residual;     // or null
  std::int64_t residual_block;
  std::int64_t residual_pixel;
  const EpilogueArgs* epilogue;
  const char* next;        // data read after this tile, which may not be in cache: prefetched in steps of `next_step`
  std::int32_t next_step;  // bytes, one step for each value of depth (bf16: for each two); 0: no prefetch
  bool adds_to_y;          // PixelStep::kRows: sums start with y, to which the scale must not have been applied
};
using TileCall = TileCallOf<float, float*, const float*>;

constexpr std::int64_t kPaddingOffset = INT64_MIN;

using TileFn = void (*)(const TileCall& call);

// The most pixels of a tile, where registers suffice for `count`. Tiles of all sizes are instances of one template, and
// take most of the time of a compilation: ENGINE_SMALL_TILES leaves the small ones, for builds with sanitizers.
constexpr int tile_pixels(int count) {
#ifdef ENGINE_SMALL_TILES
  constexpr int kMaxPixels = 6;  // the most that a test requests
  return count < kMaxPixels ? count : kMaxPixels;
#else
  return count;
#endif
}

// The positions of a tile's pixels in x: at a fixed distance in floats, at `offsets`, or, for kRows, at a distance of
// `x_pixel`. The latter is for rows of a matrix: there is one tap, blocks follow each other, and `depth` is 16.
enum class PixelStep : std::int32_t { kBlocked1, kBlocked2, kPlanar1, kPlanar2, kIndirect, kRows, kCount };

// Properties of an instruction set's tiles that plan building needs.
struct TileTraits {
  std::int32_t lanes;          // floats in a vector
  std::int32_t max_vectors;    // tiles exist with 1 to max_vectors vectors
  std::int32_t max_pixels[4];  // [vectors]: and with 1 to max_pixels[vectors] pixels
  std::int32_t best_vectors;   // the shape that comes closest to the CPU's peak
  std::int32_t weight_bytes = 4;
  std::int32_t max_product_vectors = max_vectors;  // with PixelStep::kRows and kBlocked1
  std::int32_t long_pixels = 0;                    // tiles of convolutions exist with one vector and this many, too
};

// Whether tiles of `long_pixels` cover the pixels without a rest.
static inline bool has_long_tiles(const TileTraits& traits, std::int64_t pixels) {
  return traits.long_pixels > 0 && pixels % traits.long_pixels == 0;
}

namespace ENGINE_ISA_NS {

extern const TileTraits tile_traits;

// The kernel for a tile of exactly this shape; null if there is none.
TileFn tile_kernel(int vectors, int pixels, PixelStep step);

// Makes tile `part` of the `parts` tiles that share weights prefetch its part of the next weights: `width` channels,
// `steps` values of depth (bf16: pairs). Evenly spread prefetches leave L1 fill buffers for the tile's own reads; all
// lines of a block at once would occupy them. A part is a whole number of cache lines for each four steps, so the last
// tiles of many have none.
template <class Call>
ENGINE_ALWAYS_INLINE void prefetch_part(Call& call, const typename Call::ElementType* weights, std::int64_t width,
                                        std::int64_t steps, std::int64_t part, std::int64_t parts) {
  constexpr std::uint32_t kQuarterLine = 16;
  const std::uint32_t bytes = static_cast<std::uint32_t>(width * 4);  // of a step
  // Divisions of 64 bits take three times as long on many CPUs.
  const std::uint32_t each = (bytes + static_cast<std::uint32_t>(parts) - 1) / static_cast<std::uint32_t>(parts);
  const std::int64_t step = (each + kQuarterLine - 1) / kQuarterLine * kQuarterLine;
  call.next_step = part * step < bytes ? static_cast<std::int32_t>(step) : 0;
  call.next = reinterpret_cast<const char*>(weights) + part * steps * step;
}

// The template argument of functions that iterate over tiles: the call type, the depth step, and the kernel lookup.
struct TileF32 {
  using Call = TileCall;
  static constexpr int kDepthStep = 1;
  static constexpr bool kIsPaddingZero = true;
  static constexpr PixelStep kStep1 = PixelStep::kBlocked1, kStep2 = PixelStep::kBlocked2;
  struct More {};
  static ENGINE_ALWAYS_INLINE void complete(const More&, std::int64_t, std::int64_t, TileCall&) {}
  static ENGINE_ALWAYS_INLINE TileFn kernel(const More&, int vectors, int pixels, PixelStep step) {
    return tile_kernel(vectors, pixels, step);
  }
};

}  // namespace ENGINE_ISA_NS
}  // namespace engine
