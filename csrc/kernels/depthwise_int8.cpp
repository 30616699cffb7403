// depthwise_int8: see depthwise_int8.hpp; pack_depthwise_int8: its weights, from i8 [channels, kernel_h, kernel_w].
//
// Each input row is rearranged into quads once, in a ring of the rows that a window spans, which stays in L1. Split
// over channel blocks and output rows. y must not overlap x or w; a residual may be y itself.
#include "kernels/depthwise_int8.hpp"

#include <cstring>

#include "kernels/requantize_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Outputs at a time: in long rows; in short rows and the rest of long ones.
#if defined(__AVX512BW__)
constexpr int kManyPixels = 16;
#else
constexpr int kManyPixels = 8;
#endif
constexpr int kFewPixels = 8;
constexpr int kQuad = 64;                 // bytes of a quad of 16 channels
constexpr int kPartBytes = kVectorBytes;  // of a vector of quads

#if defined(__AVX512BW__)
// Four pixels of 16 channels as [16][4]: pixels [begin, end) are read from `x`, the others are padding.
ENGINE_INLINE void store_quad(std::uint8_t* to, const std::uint8_t* x, const std::uint8_t* padding, int begin,
                              int end) {
  __m512i pixels;
  if (begin == 0 && end == 4) {
    pixels = _mm512_loadu_si512(x);
  } else {
    const std::uint32_t read = (1u << (4 * end)) - (1u << (4 * begin));
    pixels = _mm512_mask_loadu_epi32(_mm512_set1_epi8(static_cast<char>(padding[0])), static_cast<__mmask16>(read), x);
  }
  // Lane i of a pixel's quarters becomes quarter i of the pixels' lanes; then bytes within each lane likewise.
  const __m512i quarters = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
  pixels = _mm512_maskz_permutexvar_epi32((__mmask16)-1, quarters, pixels);
  _mm512_storeu_si512(to, _mm512_shuffle_epi8(pixels, bytes));
}
#else
ENGINE_INLINE void store_quad(std::uint8_t* to, const std::uint8_t* x, const std::uint8_t* padding, int begin,
                              int end) {
  const auto pixel = [&](int i) { return i >= begin && i < end ? x + i * 16 : padding; };
  const std::uint8_t* const pixels[4] = {pixel(0), pixel(1), pixel(2), pixel(3)};
  store_byte_quads(to, pixels);
}
#endif

ENGINE_INLINE int within(std::int64_t value, int low, int high) {
  return value < low ? low : value > high ? high : static_cast<int>(value);
}

// The quads of a row with its padding, or a row of padding only if `x` is null.
void fill_row(const DepthwiseInt8Args& args, const std::uint8_t* x, const std::uint8_t* padding, std::uint8_t* row) {
  const std::int64_t width = x != nullptr ? args.shape.in_w : INT64_MIN / 2;
  for (std::int64_t q = 0; q < args.row_quads; ++q) {
    const std::int64_t column = q * 4 - args.shape.pad_left;
    const int begin = within(-column, 0, 4), end = within(width - column, 0, 4);
    if (begin < end)
      store_quad(row + q * kQuad, x + column * 16, padding, begin, end);
    else
      store_quad(row + q * kQuad, padding, padding, 0, 0);
  }
}

struct Row {
  const std::uint8_t* const* quads;  // [kernel_h]: rows of quads
  const std::uint8_t* w;             // of the channel block
  const std::int32_t* start;
  const float *scale, *bias;
  const char* residual;  // or null
  char* y;
  std::int64_t y_bytes, residual_bytes;  // of an element
};

// Stores the results of the sums of outputs [first, first + count) of any kind, for vector `v` of the channel block.
ENGINE_NOINLINE void finish_any(const RequantizeArgs& args, const Row& row, const VecInt* acc, std::int64_t first,
                                int count, int v) {
  const Vec scale = load(row.scale + v * kLanes), bias = row.bias ? load(row.bias + v * kLanes) : zero();
  for (int p = 0; p < count; ++p) {
    const std::int64_t at = (first + p) * kBlock + v * kLanes;
    if (args.y == ElementCode::kI32)
      store_ints(reinterpret_cast<std::int32_t*>(row.y) + at, acc[p]);
    else
      requantize(args, fma(to_floats(acc[p]), scale, bias),
                 row.residual ? row.residual + at * row.residual_bytes : nullptr, row.y + at * row.y_bytes);
  }
}

template <int kPixels>
ENGINE_INLINE void finish_pixels(const RequantizeArgs& args, const Row& row, const VecInt (&acc)[kPixels],
                                 std::int64_t first, int count, int v) {
  const bool is_common =
      args.epilogue.activation == Activation::kClip && !args.has_middle && !row.residual && row.y_bytes == 1;
  if (!is_common) {
    VecInt sums[kPixels];  // a copy, so that `acc` itself stays in registers
#pragma GCC unroll 16
    for (int p = 0; p < kPixels; ++p) sums[p] = acc[p];
    return finish_any(args, row, sums, first, count, v);
  }
  const Vec scale = load(row.scale + v * kLanes), bias = row.bias ? load(row.bias + v * kLanes) : zero();
  Vec value[kPixels];
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) value[p] = fma(to_floats(acc[p]), scale, bias);
  std::uint8_t* y = reinterpret_cast<std::uint8_t*>(row.y) + first * kBlock + v * kLanes;
  if (count == kPixels) return store_pixels(args, value, y, kBlock);
  alignas(64) std::uint8_t codes[kPixels * kBlock];
  store_pixels(args, value, codes, kBlock);
  for (int p = 0; p < count; ++p) std::memcpy(y + p * kBlock, codes + p * kBlock, kLanes);
}

// Outputs [first, first + count) of a row, `count` at most kPixels. kWidth and kStride: 0 if not constants.
template <int kWidth, int kStride, int kPixels, bool kPairsFit>
ENGINE_INLINE void run_pixels(const DepthwiseInt8Args& args, const Row& row, std::int64_t first, int count) {
  const std::int64_t width = kWidth ? kWidth : args.shape.kernel_w, stride = kStride ? kStride : args.shape.stride_w;
  const std::int64_t quads = (width + 6) / 4;
  for (int v = 0; v < kVectorsPerBlock; ++v) {
    VecInt acc[kPixels];
    const VecInt start = load_ints(row.start + v * kLanes);
#pragma GCC unroll 16
    for (int p = 0; p < kPixels; ++p) acc[p] = start;
    for (std::int64_t r = 0; r < args.shape.kernel_h; ++r) {
      const std::uint8_t* x = row.quads[r] + first * stride / 4 * kQuad + v * kPartBytes;
      const std::uint8_t* w = row.w + r * 4 * quads * kQuad + v * kPartBytes;
      if constexpr (kWidth == 0 && kStride == 1) {
        // Any width: all shifts have the same number of quads, the last of which may be zero.
        for (std::int64_t q = 0; q < quads; ++q)
#pragma GCC unroll 16
          for (int p = 0; p < kPixels; ++p)
            acc[p] = dot_bytes<kPairsFit>(load_byte_quads(x + (p / 4 + q) * kQuad),
                                          load_byte_quads(w + (p % 4 * quads + q) * kQuad), acc[p]);
        continue;
      }
      const std::int64_t lead = kStride ? 0 : first * stride % 4;  // a constant stride has `first` at a quad
#pragma GCC unroll 16
      for (int p = 0; p < kPixels; ++p) {
        if (!kStride && p >= count) break;
        const std::int64_t at = lead + p * stride, shift = at % 4, used = (shift + width + 3) / 4;
#pragma GCC unroll 3
        for (std::int64_t q = 0; q < used; ++q)
          acc[p] = dot_bytes<kPairsFit>(load_byte_quads(x + (at / 4 + q) * kQuad),
                                        load_byte_quads(w + (shift * quads + q) * kQuad), acc[p]);
      }
    }
    finish_pixels(args.requantize, row, acc, first, count, v);
  }
}

template <int kWidth, int kStride, bool kPairsFit>
ENGINE_NOINLINE void run_row(const DepthwiseInt8Args& args, const Row& row) {
  std::int64_t first = 0;
  for (std::int64_t rest = args.shape.out_w; rest > kFewPixels; first += kManyPixels, rest -= kManyPixels)
    run_pixels<kWidth, kStride, kManyPixels, kPairsFit>(args, row, first, within(rest, 0, kManyPixels));
  if (first < args.shape.out_w)
    run_pixels<kWidth, kStride, kFewPixels, kPairsFit>(args, row, first, static_cast<int>(args.shape.out_w - first));
}

template <bool kPairsFit>
void run_row(const DepthwiseInt8Args& args, const Row& row) {
  const std::int64_t width = args.shape.kernel_w, stride = args.shape.stride_w;
  if (width == 3 && stride == 1) return run_row<3, 1, kPairsFit>(args, row);
  if (width == 3 && stride == 2) return run_row<3, 2, kPairsFit>(args, row);
  if (width == 5 && stride == 1) return run_row<5, 1, kPairsFit>(args, row);
  if (width == 5 && stride == 2) return run_row<5, 2, kPairsFit>(args, row);
  if (stride == 1) return run_row<0, 1, kPairsFit>(args, row);
  return run_row<0, 0, kPairsFit>(args, row);
}

void depthwise_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const DepthwiseInt8Args& args = *static_cast<const DepthwiseInt8Args*>(raw_args);
  const ConvShape& s = args.shape;
  const std::int64_t blocks = (s.out_channels + 15) / 16, row_bytes = args.row_quads * kQuad;
  const std::int64_t weights = s.kernel_h * 4 * ((s.kernel_w + 6) / 4) * kQuad;
  Row row = {};
  row.y_bytes = element_bytes_of(args.requantize.y);
  row.residual_bytes = element_bytes_of(args.requantize.residual);
  const std::uint8_t* x = static_cast<const std::uint8_t*>(buffers[0]);
  const std::uint8_t* w = static_cast<const std::uint8_t*>(buffers[1]);
  const std::int32_t* start = static_cast<const std::int32_t*>(buffers[2]);
  const float* scale = static_cast<const float*>(buffers[3]);
  int operand = 4;
  const float* bias = args.operands.has_bias ? static_cast<const float*>(buffers[operand++]) : nullptr;
  const char* residual = args.operands.has_residual ? static_cast<const char*>(buffers[operand++]) : nullptr;
  char* y = static_cast<char*>(buffers[operand]);

  // Scratch: the ring, a row of padding, the rows' addresses, and which input row a slot of the ring has.
  const std::int64_t span = depthwise_int8_rows(s);
  std::uint8_t* ring = static_cast<std::uint8_t*>(context.scratch);
  std::uint8_t* outside = ring + span * row_bytes;
  const std::uint8_t** quads = reinterpret_cast<const std::uint8_t**>(outside + row_bytes);
  std::int64_t* held = reinterpret_cast<std::int64_t*>(quads + s.kernel_h);
  alignas(16) std::uint8_t padding[16];
  std::memset(padding, args.zero_point, sizeof padding);
  fill_row(args, nullptr, padding, outside);
  row.quads = quads;

  // Positions are advanced rather than computed: a division takes as long as several outputs.
  const WorkRange range = split_work(s.batch * blocks * s.out_h, context.worker, context.workers);
  if (range.begin >= range.end) return;  // also if there are no rows
  std::int64_t map = range.begin / s.out_h, oh = range.begin % s.out_h, block = map % blocks, first_slot = 0;
  bool is_new_map = true;
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t top = oh * s.stride_h - s.pad_top;
    if (is_new_map) {
      for (std::int64_t r = 0; r < span; ++r) held[r] = -1;
      first_slot = 0;
      is_new_map = false;
    }
    for (std::int64_t r = 0, slot = first_slot; r < s.kernel_h; ++r, slot += s.dilation_h) {
      const std::int64_t ih = top + r * s.dilation_h;
      if (slot >= span) slot -= span;
      if (ih < 0 || ih >= s.in_h) {
        quads[r] = outside;
        continue;
      }
      if (held[slot] != ih) {
        fill_row(args, x + (map * s.in_h + ih) * s.in_w * 16, padding, ring + slot * row_bytes);
        held[slot] = ih;
      }
      quads[r] = ring + slot * row_bytes;
    }
    const std::int64_t at = (map * s.out_h + oh) * s.out_w * 16;
    row.w = w + block * weights;
    row.start = start + block * 16;
    row.scale = scale + block * 16;
    row.bias = bias ? bias + block * 16 : nullptr;
    row.residual = residual ? residual + at * row.residual_bytes : nullptr;
    row.y = y + at * row.y_bytes;
    if (args.pairs_fit && kHasPairProducts)
      run_row<kHasPairProducts>(args, row);
    else
      run_row<false>(args, row);
    for (first_slot += s.stride_h; first_slot >= span;) first_slot -= span;
    if (++oh == s.out_h) {
      oh = 0;
      ++map;
      block = block + 1 == blocks ? 0 : block + 1;
      is_new_map = true;
    }
  }
}

void pack_depthwise_int8(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvShape& s = static_cast<const DepthwiseInt8Args*>(raw_args)->shape;
  const std::int8_t* source = static_cast<const std::int8_t*>(buffers[0]);
  std::int8_t* to = static_cast<std::int8_t*>(buffers[1]);
  const std::int64_t quads = (s.kernel_w + 6) / 4, block_bytes = s.kernel_h * 4 * quads * kQuad;
  const WorkRange range = split_work((s.out_channels + 15) / 16, context.worker, context.workers);
  std::memset(to + range.begin * block_bytes, 0, static_cast<std::size_t>((range.end - range.begin) * block_bytes));
  for (std::int64_t block = range.begin; block < range.end; ++block)
    for (std::int64_t r = 0; r < s.kernel_h; ++r)
      for (std::int64_t shift = 0; shift < 4; ++shift)
        for (std::int64_t c = 0; c < 16 && block * 16 + c < s.out_channels; ++c)
          for (std::int64_t k = 0; k < s.kernel_w; ++k) {
            const std::int64_t byte = shift + k, quad = ((block * s.kernel_h + r) * 4 + shift) * quads + byte / 4;
            to[quad * kQuad + c * 4 + byte % 4] = source[((block * 16 + c) * s.kernel_h + r) * s.kernel_w + k];
          }
}

}  // namespace

extern const KernelEntry depthwise_int8_kernels[] = {{"depthwise_int8", depthwise_int8, nullptr},
                                                     {"pack_depthwise_int8", pack_depthwise_int8, nullptr},
                                                     {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
