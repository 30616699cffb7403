// average_pool_bytes: see average_bytes.hpp. Operands: x (u8 or i8), y; y must not overlap x. Split over (image,
// channel block, output row).
#include "kernels/average_bytes.hpp"

#include "kernels/requantize_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// The positions start + i * dilation, 0 <= i < kernel, in [low, high): the first i and their number.
ENGINE_INLINE WorkRange taps(std::int64_t start, std::int64_t kernel, std::int64_t dilation, std::int64_t low,
                             std::int64_t high) {
  std::int64_t begin = start < low ? (low - start + dilation - 1) / dilation : 0;
  std::int64_t end = start >= high ? 0 : (high - start + dilation - 1) / dilation;
  if (end > kernel) end = kernel;
  if (begin > end) begin = end;
  return {begin, end};
}

ENGINE_INLINE std::int64_t size_of(WorkRange range) {
  return range.end - range.begin;
}

ENGINE_INLINE VecInt load_byte_ints(const std::uint8_t* from) {
#if defined(__AVX512F__)
  return (VecInt)_mm512_maskz_cvtepu8_epi32((__mmask16)-1, _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (VecInt)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  return __builtin_convertvector(*reinterpret_cast<const BytesUnaligned*>(from), VecInt);
#endif
}

ENGINE_INLINE VecInt sum_of(const std::uint8_t* x, std::int64_t rows, std::int64_t cols, std::int64_t row_step,
                            std::int64_t col_step, std::int32_t flip) {
  VecInt partial[4] = {};
  for (std::int64_t r = 0; r < rows; ++r, x += row_step) {
    const std::uint8_t* at = x;
    std::int64_t c = 0;
    for (; c + 4 <= cols; c += 4, at += 4 * col_step)
      for (int i = 0; i < 4; ++i) partial[i] += load_byte_ints(at + i * col_step) ^ flip;
    for (; c < cols; ++c, at += col_step) partial[0] += load_byte_ints(at) ^ flip;
  }
  return (partial[0] + partial[1]) + (partial[2] + partial[3]);
}

void average_pool_bytes(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AverageBytesArgs& args = *static_cast<const AverageBytesArgs*>(raw_args);
  const ConvShape& s = args.pool.shape;
  const std::int64_t blocks = (s.in_channels + 15) / 16, bytes = element_bytes_of(args.requantize.y);
  const WorkRange range = split_work(s.batch * blocks * s.out_h, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t n = item / (blocks * s.out_h), block = item / s.out_h % blocks, oh = item % s.out_h;
    const std::uint8_t* map =
        static_cast<const std::uint8_t*>(buffers[0]) + n * args.pool.x_batch + block * s.in_h * s.in_w * 16;
    char* y = static_cast<char*>(buffers[1]) + (n * args.pool.y_batch + (block * s.out_h + oh) * s.out_w * 16) * bytes;
    const std::int64_t top = oh * s.stride_h - s.pad_top;
    const WorkRange rows = taps(top, s.kernel_h, s.dilation_h, 0, s.in_h);
    const WorkRange counted_rows = args.pool.counts_padding
                                       ? taps(top, s.kernel_h, s.dilation_h, -s.pad_top, s.in_h + args.pool.pad_bottom)
                                       : rows;
    for (std::int64_t ow = 0; ow < s.out_w; ++ow, y += 16 * bytes) {
      const std::int64_t left = ow * s.stride_w - s.pad_left;
      const WorkRange cols = taps(left, s.kernel_w, s.dilation_w, 0, s.in_w);
      const WorkRange counted_cols =
          args.pool.counts_padding ? taps(left, s.kernel_w, s.dilation_w, -s.pad_left, s.in_w + args.pool.pad_right)
                                   : cols;
      const std::int64_t inside = size_of(rows) * size_of(cols), count = size_of(counted_rows) * size_of(counted_cols);
      const std::int64_t at = (top + rows.begin * s.dilation_h) * s.in_w + left + cols.begin * s.dilation_w;
      const float scale = inside == 0 ? 0 : args.scale / static_cast<float>(count);
      const std::int32_t zeros = static_cast<std::int32_t>(inside * args.zero_point);
      for (int l = 0; l < 16; l += kLanes) {
        const VecInt sum = inside == 0 ? VecInt{}
                                       : sum_of(map + at * 16 + l, size_of(rows), size_of(cols),
                                                s.dilation_h * s.in_w * 16, s.dilation_w * 16, args.flip);
        requantize(args.requantize, to_floats(sum - zeros) * scale, nullptr, y + l * bytes);
      }
    }
  }
}

}  // namespace

extern const KernelEntry average_bytes_kernels[] = {{"average_pool_bytes", average_pool_bytes, nullptr},
                                                    {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
