// Implements the tiles of tile_int8.hpp. With VNNI, or USDOT of Arm, one instruction computes four products for each
// lane; without it, two products of 16-bit integers do, or a product of bytes in pairs if their sums fit into 16 bits.
// Arm's SDOT also needs a product of the weights, which the pixels of a tile share.
#include "kernels/tile_int8.hpp"

#include "kernels/requantize_vector.hpp"
#include "kernels/tile_step.hpp"
#include "simd/indices.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Two vectors need only half a load for each product; tiles of more vectors are no faster, and take long to compile.
// One vector needs more than a load, whatever the number of pixels, which only has to hide the latency of the products.
constexpr int kMaxVectors = 2;
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int kMaxPixels[3] = {0, tile_pixels(14), tile_pixels(14)};
#elif defined(__AVX512BW__)
// A product is several instructions, so that small tiles already load less than they compute.
constexpr int kMaxPixels[3] = {0, tile_pixels(8), tile_pixels(7)};
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int kMaxPixels[3] = {0, tile_pixels(14), tile_pixels(12)};
#elif defined(__AVXVNNI__)
constexpr int kMaxPixels[3] = {0, tile_pixels(8), tile_pixels(6)};
#else
constexpr int kMaxPixels[3] = {0, tile_pixels(6), tile_pixels(4)};
#endif
#if defined(__AVX2__) && !defined(__AVX512BW__) && !defined(__AVXVNNI__)
constexpr int kMaxPairPixels[3] = {0, tile_pixels(6), tile_pixels(5)};
#else
constexpr const int (&kMaxPairPixels)[3] = kMaxPixels;
#endif
constexpr int kDepth = 4;  // values of depth in a step

// Adds the products of four values at `from` with kVectors vectors of weights.
template <bool kPairsFit, int kPixels>
ENGINE_INLINE void add_products(const std::uint8_t* from, const VecInt (&weight)[1], VecInt (&acc)[1][kPixels], int p) {
  acc[0][p] = dot_bytes<kPairsFit>(broadcast_byte_quad(from), weight[0], acc[0][p]);
}
template <bool kPairsFit, int kPixels>
ENGINE_INLINE void add_products(const std::uint8_t* from, const VecInt (&weight)[2], VecInt (&acc)[2][kPixels], int p) {
#if defined(__AVX512VNNI__)
  // One statement, since the compiler would load values of x early, and then lack registers for accumulators.
  VecInt value;
  __asm__("vpbroadcastd %3, %2\n\tvpdpbusd %4, %2, %0\n\tvpdpbusd %5, %2, %1"
          : "+v"(acc[0][p]), "+v"(acc[1][p]), "=&v"(value)
          : "m"(*reinterpret_cast<const Byte4*>(from)), "v"(weight[0]), "v"(weight[1]));
#else
  const VecInt value = broadcast_byte_quad(from);
  acc[0][p] = dot_bytes<kPairsFit>(value, weight[0], acc[0][p]);
  acc[1][p] = dot_bytes<kPairsFit>(value, weight[1], acc[1][p]);
#endif
}

// Four depths; pixel(p) is the address of pixel p's values.
template <bool kPairsFit, int kVectors, int kPixels, class Pixel>
ENGINE_INLINE void multiply(const std::uint8_t* w, const Pixel& pixel, VecInt (&acc)[kVectors][kPixels]) {
  VecInt weight[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) weight[v] = load_byte_quads(w + v * kLanes * kDepth);
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) add_products<kPairsFit>(pixel(p), weight, acc, p);
}

// In place of the bytes between pixels; StepPixels then knows them.
constexpr int kAnyStep = -1;

template <int kStep>
struct DensePixels {
  const std::uint8_t* at;
  ENGINE_ALWAYS_INLINE const std::uint8_t* operator()(int p) const { return at + p * kStep; }
};

template <int kPixels>
struct IndirectPixels {
  const std::uint8_t* pixel[kPixels];
  std::int64_t depth;
  ENGINE_ALWAYS_INLINE const std::uint8_t* operator()(int p) const { return pixel[p] + depth; }
};

// Requantizes sums [vectors][pixels][lanes] in memory: any epilogue.
ENGINE_NOINLINE void finish_tile(const TileCallInt8& call, int vectors, int pixels, const std::int32_t* sums) {
  const RequantizeArgs& args = *call.requantize;
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t block = v / kVectorsPerBlock, lane = v % kVectorsPerBlock * kLanes;
    const SizedPointer<char> y = call.y + (block * call.y_block + lane);
    const SizedPointer<const char> residual = call.residual + (block * call.residual_block + lane);
    const Vec scale = load(call.scale + v * kLanes), bias = call.bias ? load(call.bias + v * kLanes) : zero();
    const Vec middle_bias = call.middle_bias ? load(call.middle_bias + v * kLanes) : zero();
    for (int p = 0; p < pixels; ++p) {
      const VecInt sum = load_ints(sums + (v * pixels + p) * kLanes);
      requantize(args, fma(to_floats(sum), scale, bias),
                 residual.data ? (residual + p * call.residual_pixel).data : nullptr, (y + p * call.y_pixel).data,
                 middle_bias);
    }
  }
}

// The common results: 8-bit integers, clipped; the residual, if any, is of 8 bits, too. A loop for each part, so that
// conditions are tested once a tile.
template <int kVectors, int kPixels>
ENGINE_INLINE void store_codes(const TileCallInt8& call, VecInt (&acc)[kVectors][kPixels]) {
  const RequantizeArgs& args = *call.requantize;
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t block = v / kVectorsPerBlock, lane = v % kVectorsPerBlock * kLanes;
    const Vec scale = load(call.scale + v * kLanes);
    Vec bias = call.bias ? load(call.bias + v * kLanes) : zero();
    // The residual's zero point is part of the addition before it.
    const bool has_residual = call.residual.data != nullptr;
    Vec offset = broadcast(has_residual ? -args.residual_zero_point * args.residual_scale : 0.0f);
    if (call.middle_bias) offset += load(call.middle_bias + v * kLanes);
    if (!args.has_middle) bias += offset;
    Vec value[kPixels];
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) value[p] = fma(to_floats(acc[v][p]), scale, bias);
    if (args.has_middle) {
      const Vec low = broadcast(args.middle_low), high = broadcast(args.middle_high);
      const Vec middle_scale = broadcast(args.middle_scale);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) value[p] = fma(round_within(low, high, value[p]), middle_scale, offset);
    }
    if (has_residual) {
      const char* residual = (call.residual + (block * call.residual_block + lane)).data;
      const Vec factor = broadcast(args.residual_scale);
      if (args.residual == ElementCode::kU8) {
        const std::uint8_t* from = reinterpret_cast<const std::uint8_t*>(residual);
#pragma GCC unroll 14
        for (int p = 0; p < kPixels; ++p) value[p] = fma(load_bytes(from + p * call.residual_pixel), factor, value[p]);
      } else {
        const std::int8_t* from = reinterpret_cast<const std::int8_t*>(residual);
#pragma GCC unroll 14
        for (int p = 0; p < kPixels; ++p) value[p] = fma(load_bytes(from + p * call.residual_pixel), factor, value[p]);
      }
    }
    store_pixels(args, value, reinterpret_cast<std::uint8_t*>(call.y.data) + block * call.y_block + lane, call.y_pixel);
  }
}

// Sums of i32.
template <int kVectors, int kPixels>
ENGINE_INLINE void store_sums(const TileCallInt8& call, const VecInt (&acc)[kVectors][kPixels]) {
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    std::int32_t* y = reinterpret_cast<std::int32_t*>(call.y.data) + v / kVectorsPerBlock * call.y_block +
                      v % kVectorsPerBlock * kLanes;
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) store_ints(y + p * call.y_pixel, acc[v][p]);
  }
}

// Results of f32 without a residual.
template <int kVectors, int kPixels>
ENGINE_INLINE void store_floats(const TileCallInt8& call, const VecInt (&acc)[kVectors][kPixels]) {
  const Vec low = broadcast(call.requantize->epilogue.alpha), high = broadcast(call.requantize->epilogue.beta);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const Vec scale = load(call.scale + v * kLanes), bias = call.bias ? load(call.bias + v * kLanes) : zero();
    float* y =
        reinterpret_cast<float*>(call.y.data) + v / kVectorsPerBlock * call.y_block + v % kVectorsPerBlock * kLanes;
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p)
      store(y + p * call.y_pixel, min(high, max(low, fma(to_floats(acc[v][p]), scale, bias))));
  }
}

// Prefetches weights of other tiles for one block.
ENGINE_INLINE void prefetch_weights(const char* next, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
}

// Any depth. Both functions advance w.
template <int kStep, bool kPairsFit, int kVectors, int kPixels>
ENGINE_INLINE void multiply_depth(const std::uint8_t* x, const std::uint8_t*& w, int depth,
                                  [[maybe_unused]] AnyStep& any, VecInt (&acc)[kVectors][kPixels]) {
  for (int d = 0; d < depth; d += kDepth, x += kDepth, w += kVectors * kLanes * kDepth) {
    ENGINE_FORGET(x);
    if constexpr (kStep == kAnyStep) {
      any.forget();
      multiply<kPairsFit>(w, StepPixels<std::uint8_t, kPixels>(x, any), acc);
    } else {
      multiply<kPairsFit>(w, DensePixels<kStep>{x}, acc);
    }
  }
}

// If a product is one instruction, the instructions of a loop would take as long as the products of a step. (Otherwise,
// unrolled steps take up to 1.4 times as long.)
constexpr bool kUnrollsBlocks = kHasDotProducts;

// 16 values of depth, unrolled.
template <int kStep, bool kPairsFit, int kVectors, int kPixels>
ENGINE_INLINE void multiply_block(const std::uint8_t* x, const std::uint8_t*& w, VecInt (&acc)[kVectors][kPixels]) {
#pragma GCC unroll 4
  for (int d = 0; d < kBlock; d += kDepth) {
    // Keeps loads in their step: the compiler would keep more values than there are registers.
    ENGINE_FORGET(x);
    ENGINE_FORGET(w);
    multiply<kPairsFit>(w + d * kVectors * kLanes, DensePixels<kStep>{x + d}, acc);
  }
  w += kVectors * kLanes * kBlock;
}

// One tap, adjacent pixels: the case of most products and 1x1 convolutions.
template <bool kPairsFit, int kVectors, int kPixels>
ENGINE_INLINE void multiply_single_tap(const TileCallInt8& call, VecInt (&acc)[kVectors][kPixels]) {
  const std::uint8_t *x = call.x, *w = call.w;
  const std::int64_t x_block = call.x_block;
  std::int64_t ahead = std::int64_t{call.next_step} * 4;
  const char* next = call.next;
  std::int32_t rest = call.last_depth % kBlock, left = call.blocks;
  std::int32_t partial = rest != 0 || call.last_depth == 0;
  for (; left > partial; --left) {
    // Otherwise the compiler would make a loop for each special case.
    ENGINE_FORGET(ahead);
    ENGINE_FORGET(partial);
    ENGINE_FORGET(left);
    prefetch_weights(next, ahead);
    next += ahead;
    // The pixels of the block after the next one, or of the next tile: too far apart for hardware prefetchers.
    const std::uint8_t* later = left > 2 ? x + 2 * x_block : call.x + (2 - left) * x_block + kPixels * kBlock;
#pragma GCC unroll 4
    for (int i = 0; i < kPixels * kBlock; i += 64) __builtin_prefetch(later + i);
    multiply_block<kBlock, kPairsFit>(x, w, acc);
    x += x_block;
  }
  ENGINE_FORGET(rest);
  AnyStep none(0);
  if (rest != 0) multiply_depth<kBlock, kPairsFit>(x, w, rest, none, acc);
}

// Any taps; pixels at a fixed distance.
template <int kStep, bool kPairsFit, int kVectors, int kPixels>
ENGINE_INLINE void multiply_taps(const TileCallInt8& call, int step, VecInt (&acc)[kVectors][kPixels]) {
  AnyStep any(step);
  const std::uint8_t *block = call.x, *w = call.w;  // weights are contiguous, since no tap is skipped
  for (int b = 0; b < call.blocks; ++b) {
    // The call's fields are reloaded where they are needed: keeping them in registers would spill accumulators.
    const TileCallInt8* at = &call;
    ENGINE_FORGET(at);
    const int depth = b == at->blocks - 1 ? at->last_depth : at->depth;
    const std::int64_t ahead = std::int64_t{at->next_step} * at->rows * at->cols * 4;
    prefetch_weights(at->next + b * ahead, ahead);
    if constexpr (kStep == kBlock) {
      const std::uint8_t* later =
          b + 2 < at->blocks ? block + 2 * at->x_block : at->x + (b + 2 - at->blocks) * at->x_block + kPixels * kStep;
#pragma GCC unroll 4
      for (int i = 0; i < kPixels * kStep; i += 64) __builtin_prefetch(later + i);
    }
    const std::uint8_t* row = block;
    for (int r = 0; r < at->rows; ++r) {
      const std::uint8_t* x = row;
      for (int c = 0; c < at->cols; ++c) {
        if (kUnrollsBlocks && kStep == kBlock && depth == kBlock)
          multiply_block<kStep, kPairsFit>(x, w, acc);
        else
          multiply_depth<kStep, kPairsFit>(x, w, depth, any, acc);
        ENGINE_FORGET(at);
        x += at->x_col;
      }
      row += at->x_row;
    }
    block += at->x_block;
  }
}

// Pixels at any distance, or in the padding.
template <bool kPairsFit, int kVectors, int kPixels>
ENGINE_INLINE void multiply_indirect(const TileCallInt8& call, VecInt (&acc)[kVectors][kPixels]) {
  constexpr int kStride = kVectors * kLanes * kDepth;
  const std::uint8_t *block = call.x, *w = call.w;
  for (int b = 0; b < call.blocks; ++b) {
    // The call's fields are reloaded where they are needed: keeping them in registers would spill accumulators.
    const TileCallInt8* at = &call;
    ENGINE_FORGET(at);
    const int depth = b == at->blocks - 1 ? at->last_depth : at->depth;
    const std::int64_t* offsets = at->offsets;
    const std::int64_t ahead = std::int64_t{at->next_step} * at->rows * at->cols * 4;
    prefetch_weights(at->next + b * ahead, ahead);
    for (int tap = at->rows * at->cols; tap > 0; --tap) {
      IndirectPixels<kPixels> pixels;
      pixels.depth = 0;
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) {
        const std::int64_t offset = offsets[p];
        pixels.pixel[p] = offset == kPaddingOffset ? at->padding : block + offset;
      }
      offsets += kPixels;
      // There are more pointers than general registers; the rest would occupy vector registers of the accumulators.
      __asm__ volatile("" : "+m"(block), "+m"(offsets), "+m"(at), "+m"(b), "+m"(tap));
      for (; pixels.depth < depth; pixels.depth += kDepth, w += kStride) {
        if constexpr (kPixels > 11) __asm__ volatile("" : "+m"(pixels.pixel));
        multiply<kPairsFit>(w, pixels, acc);
      }
    }
    ENGINE_FORGET(at);
    block += at->x_block;
  }
}

// Pixels `kStep` bytes apart.
template <int kStep, bool kPairsFit, int kVectors, int kPixels>
ENGINE_INLINE void multiply_all(const TileCallInt8& call, int step, VecInt (&acc)[kVectors][kPixels]) {
  if constexpr (kUnrollsBlocks && kStep == kBlock) {
    if (call.rows * call.cols == 1) return multiply_single_tap<kPairsFit>(call, acc);
  }
  multiply_taps<kStep, kPairsFit>(call, step, acc);
}

// step: bytes between pixels; 0 for indirect pixels. Tiles of all steps share the ends, which are longer than the
// loops.
template <int kVectors, int kPixels, bool kPairsFit>
ENGINE_NOINLINE void run(const TileCallInt8& call, int step) {
  VecInt acc[kVectors][kPixels];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const VecInt start = load_ints(call.start + v * kLanes);
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) acc[v][p] = start;
  }
  if (call.factors != nullptr) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const VecInt factor = load_ints(call.factors + v * kLanes);
#pragma GCC unroll 14
      for (int p = 0; p < kPixels; ++p) acc[v][p] += factor * (call.pixel_sums[p] - VecInt{});
    }
  }

  if (step == kBlock)
    multiply_all<kBlock, kPairsFit>(call, step, acc);
  else if (step == 0)
    multiply_indirect<kPairsFit>(call, acc);
  else
    multiply_all<kAnyStep, kPairsFit>(call, step, acc);

  const RequantizeArgs& args = *call.requantize;
  const bool is_common = args.epilogue.activation == Activation::kClip && element_bytes_of(args.y) == 1 &&
                         (!call.residual.data || element_bytes_of(args.residual) == 1);
  if (is_common) return store_codes(call, acc);
  const bool is_real = args.epilogue.activation == Activation::kClip && args.y == ElementCode::kF32;
  if (is_real && !args.has_middle && !call.residual.data) return store_floats(call, acc);
  if (args.y == ElementCode::kI32) return store_sums(call, acc);
  alignas(64) std::int32_t sums[kVectors * kPixels * kLanes];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p) store_ints(sums + (v * kPixels + p) * kLanes, acc[v][p]);
  finish_tile(call, kVectors, kPixels, sums);
}

template <int kVectors, int kPixels, int kStep, bool kPairsFit>
void tile(const TileCallInt8& call) {
  int step = kStep;
  ENGINE_FORGET(step);  // or the compiler might make a copy of `run` for each
  run<kVectors, kPixels, kPairsFit>(call, step);
}

template <int kVectors, int kStep, bool kPairsFit, int... kPixels>
TileInt8Fn pick(int pixels, Indices<kPixels...>) {
  static const TileInt8Fn table[] = {&tile<kVectors, kPixels, kStep, kPairsFit>...};
  return pixels >= 1 && pixels <= static_cast<int>(sizeof...(kPixels)) ? table[pixels - 1] : nullptr;
}

template <int kVectors, bool kPairsFit>
TileInt8Fn pick(int pixels, PixelStep step) {
  typename CountTo<(kPairsFit ? kMaxPairPixels : kMaxPixels)[kVectors]>::Type all;
  switch (step) {
    case PixelStep::kBlocked1:
      return pick<kVectors, kBlock, kPairsFit>(pixels, all);
    case PixelStep::kBlocked2:
      return pick<kVectors, 2 * kBlock, kPairsFit>(pixels, all);
    case PixelStep::kIndirect:
      return pick<kVectors, 0, kPairsFit>(pixels, all);
    case PixelStep::kPlanar1:
      return pick<kVectors, 4, kPairsFit>(pixels, all);
    case PixelStep::kPlanar2:
      return pick<kVectors, 8, kPairsFit>(pixels, all);
    case PixelStep::kRows:
    case PixelStep::kCount:
      break;
  }
  return nullptr;
}

template <bool kPairsFit>
TileInt8Fn pick(int vectors, int pixels, PixelStep step) {
  switch (vectors) {
    case 1:
      return pick<1, kPairsFit>(pixels, step);
    case 2:
      return pick<2, kPairsFit>(pixels, step);
  }
  return nullptr;
}

}  // namespace

const TileTraits tile_int8_traits = {kLanes, kMaxVectors, {0, kMaxPixels[1], kMaxPixels[2]}, kMaxVectors, 1};

const TileTraits tile_pairs_int8_traits = {
    kLanes, kMaxVectors, {0, kMaxPairPixels[1], kMaxPairPixels[2]}, kMaxVectors, 1};

TileInt8Fn tile_int8_kernel(int vectors, int pixels, PixelStep step, bool pairs_fit) {
  return pairs_fit && kHasPairProducts ? pick<kHasPairProducts>(vectors, pixels, step)
                                       : pick<false>(vectors, pixels, step);
}

// Tiles are used only through tile_int8_kernel, never by a plan.
extern const KernelEntry tile_int8_kernels[] = {{"tile_pairs_int8", nullptr, &tile_pairs_int8_traits},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
