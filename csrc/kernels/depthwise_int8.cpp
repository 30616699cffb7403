// depthwise_int8: see depthwise_int8.hpp; pack_depthwise_int8: its weights, from i8 [channels, kernel_h, kernel_w].
//
// Each input row is rearranged into quads once, in a ring of kernel_h rows that stays in L1. Split over channel blocks
// and output rows. y must not overlap x or w; a residual may be y itself.
#include "kernels/depthwise_int8.hpp"

#include <cstring>

#include "kernels/requantize_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kPixels = 8;                // outputs at a time
constexpr int kQuad = 64;                 // bytes of a quad of 16 channels
constexpr int kPartBytes = kVectorBytes;  // of a vector of quads

// Four pixels of 16 channels as [16][4].
ENGINE_INLINE void store_quad(std::uint8_t* to, const std::uint8_t* const (&pixel)[4]) {
#if defined(__SSE2__)
  const auto read = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel[i])); };
  const __m128i a = read(0), b = read(1), c = read(2), d = read(3);
  const __m128i ab0 = _mm_unpacklo_epi8(a, b), ab1 = _mm_unpackhi_epi8(a, b);
  const __m128i cd0 = _mm_unpacklo_epi8(c, d), cd1 = _mm_unpackhi_epi8(c, d);
  __m128i* out = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(out, _mm_unpacklo_epi16(ab0, cd0));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(ab0, cd0));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(ab1, cd1));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(ab1, cd1));
#else
  for (int c = 0; c < 16; ++c)
    for (int i = 0; i < 4; ++i) to[c * 4 + i] = pixel[i][c];
#endif
}

void fill_row(const DepthwiseInt8Args& args, const std::uint8_t* x, const std::uint8_t* padding, std::uint8_t* row) {
  const std::int64_t width = args.shape.in_w, left = args.shape.pad_left;
  for (std::int64_t q = 0; q < args.row_quads; ++q) {
    const std::uint8_t* pixel[4];
    for (int i = 0; i < 4; ++i) {
      const std::int64_t column = q * 4 + i - left;
      pixel[i] = x != nullptr && column >= 0 && column < width ? x + column * 16 : padding;
    }
    store_quad(row + q * kQuad, pixel);
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

// Outputs [first, first + count) of a row, `count` at most kPixels. kWidth and kStride: 0 if not constants.
template <int kWidth, int kStride>
ENGINE_INLINE void run_pixels(const DepthwiseInt8Args& args, const Row& row, std::int64_t first, int count) {
  const std::int64_t width = kWidth ? kWidth : args.shape.kernel_w, stride = kStride ? kStride : args.shape.stride_w;
  const std::int64_t quads = (width + 6) / 4;
  for (int v = 0; v < kVectorsPerBlock; ++v) {
    VecInt acc[kPixels];
    const VecInt start = load_ints(row.start + v * kLanes);
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) acc[p] = start;
    for (std::int64_t r = 0; r < args.shape.kernel_h; ++r) {
      const std::uint8_t* x = row.quads[r] + first * stride / 4 * kQuad + v * kPartBytes;
      const std::uint8_t* w = row.w + r * 4 * quads * kQuad + v * kPartBytes;
      const std::int64_t lead = kStride ? 0 : first * stride % 4;  // a constant stride has `first` at a quad
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        if (!kStride && p >= count) break;
        const std::int64_t at = lead + p * stride, shift = at % 4, used = (shift + width + 3) / 4;
#pragma GCC unroll 3
        for (std::int64_t q = 0; q < used; ++q)
          acc[p] = dot_bytes(load_byte_quads(x + (at / 4 + q) * kQuad),
                             load_byte_quads(w + (shift * quads + q) * kQuad), acc[p]);
      }
    }
    const RequantizeArgs& requantized = args.requantize;
    const Vec scale = load(row.scale + v * kLanes), bias = row.bias ? load(row.bias + v * kLanes) : zero();
    const bool is_common = requantized.epilogue.activation == Activation::kClip && !requantized.has_middle &&
                           !row.residual && row.y_bytes == 1;
    const Vec low = broadcast(requantized.low), high = broadcast(requantized.high);
    const VecInt zero_point = requantized.zero_point - VecInt{};
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
      if (p >= count) break;
      const std::int64_t at = (first + p) * 16 + v * kLanes;
      if (is_common) {
        const VecInt codes = round_to_ints(min(high, max(low, fma(to_floats(acc[p]), scale, bias))));
        store_bytes(reinterpret_cast<std::uint8_t*>(row.y) + at, codes + zero_point);
      } else if (requantized.y == ElementCode::kI32) {
        store_ints(reinterpret_cast<std::int32_t*>(row.y) + at, acc[p]);
      } else {
        requantize(requantized, fma(to_floats(acc[p]), scale, bias),
                   row.residual ? row.residual + at * row.residual_bytes : nullptr, row.y + at * row.y_bytes);
      }
    }
  }
}

template <int kWidth, int kStride>
ENGINE_NOINLINE void run_row(const DepthwiseInt8Args& args, const Row& row) {
  for (std::int64_t first = 0; first < args.shape.out_w; first += kPixels) {
    const std::int64_t rest = args.shape.out_w - first;
    run_pixels<kWidth, kStride>(args, row, first, rest < kPixels ? static_cast<int>(rest) : kPixels);
  }
}

void run_row(const DepthwiseInt8Args& args, const Row& row) {
  const std::int64_t width = args.shape.kernel_w, stride = args.shape.stride_w;
  if (width == 3 && stride == 1) return run_row<3, 1>(args, row);
  if (width == 3 && stride == 2) return run_row<3, 2>(args, row);
  if (width == 5 && stride == 1) return run_row<5, 1>(args, row);
  if (width == 5 && stride == 2) return run_row<5, 2>(args, row);
  return run_row<0, 0>(args, row);
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
  std::uint8_t* ring = static_cast<std::uint8_t*>(context.scratch);
  std::uint8_t* outside = ring + s.kernel_h * row_bytes;
  const std::uint8_t** quads = reinterpret_cast<const std::uint8_t**>(outside + row_bytes);
  std::int64_t* held = reinterpret_cast<std::int64_t*>(quads + s.kernel_h);
  alignas(16) std::uint8_t padding[16];
  std::memset(padding, args.zero_point, sizeof padding);
  fill_row(args, nullptr, padding, outside);
  row.quads = quads;

  const WorkRange range = split_work(s.batch * blocks * s.out_h, context.worker, context.workers);
  std::int64_t map = -1;
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t oh = item % s.out_h, block = item / s.out_h % blocks;
    if (map != item / s.out_h) {
      map = item / s.out_h;
      for (std::int64_t r = 0; r < s.kernel_h; ++r) held[r] = -1;
    }
    for (std::int64_t r = 0; r < s.kernel_h; ++r) {
      const std::int64_t ih = oh * s.stride_h - s.pad_top + r;
      if (ih < 0 || ih >= s.in_h) {
        quads[r] = outside;
        continue;
      }
      const std::int64_t slot = ih % s.kernel_h;
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
    run_row(args, row);
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
