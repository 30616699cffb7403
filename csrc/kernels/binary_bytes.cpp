// binary_bytes: see binary_bytes.hpp. Operands: A, B, y, which may be A or B where it has their size and B is not
// repeated. Split over strips of a part of `outer`.
#include "kernels/binary_bytes.hpp"

#include <cstring>

#include "kernels/requantize_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr std::int64_t kStrip = 2048;

struct Numbers {
  Vec a_scale, b_scale, a_zero, b_zero;
};

template <bool kIsProduct>
ENGINE_INLINE Vec combine(const Numbers& by, Vec a, Vec b) {
  if (kIsProduct) return (a - by.a_zero) * (b - by.b_zero) * by.a_scale;
  return fma(a - by.a_zero, by.a_scale, (b - by.b_zero) * by.b_scale);
}

// `count` elements; kStep: bytes between vectors of b, kLanes or 0.
template <bool kIsProduct, std::int64_t kStep>
ENGINE_NOINLINE void run_strip(const BinaryBytesArgs& args, const std::uint8_t* a, const std::uint8_t* b, char* y,
                               std::int64_t count) {
  const Numbers by = {broadcast(args.a_scale), broadcast(args.b_scale), broadcast(args.a_zero_point),
                      broadcast(args.b_zero_point)};
  const std::int64_t bytes = element_bytes_of(args.requantize.y);
  const RequantizeArgs& to = args.requantize;
  std::int64_t i = 0;
  if (to.y == ElementCode::kF32) {
    for (; i + kLanes <= count; i += kLanes)
      requantize(to,
                 combine<kIsProduct>(by, load_bytes(a + i, args.a_flip), load_bytes(b + (kStep ? i : 0), args.b_flip)),
                 nullptr, y + i * bytes);
  } else {
    const Vec low = broadcast(to.low), high = broadcast(to.high);
    const VecInt zero_point = to.zero_point - VecInt{};
    for (; i + kLanes <= count; i += kLanes) {
      const Vec value =
          combine<kIsProduct>(by, load_bytes(a + i, args.a_flip), load_bytes(b + (kStep ? i : 0), args.b_flip));
      store_bytes(reinterpret_cast<std::uint8_t*>(y) + i, round_to_ints(min(high, max(low, value))) + zero_point);
    }
  }
  if (i == count) return;
  // The last elements, through memory of whole vectors.
  const std::size_t rest = static_cast<std::size_t>(count - i);
  std::uint8_t last[2][kVectorBytes] = {};
  alignas(64) char out[kVectorBytes];
  std::memcpy(last[0], a + i, rest);
  std::memcpy(last[1], b + (kStep ? i : 0), rest);
  requantize(to, combine<kIsProduct>(by, load_bytes(last[0], args.a_flip), load_bytes(last[1], args.b_flip)), nullptr,
             out);
  std::memcpy(y + i * bytes, out, rest * static_cast<std::size_t>(bytes));
}

template <bool kIsProduct>
void run(const BinaryBytesArgs& args, void* const* buffers, const KernelContext& context) {
  const std::uint8_t* a = static_cast<const std::uint8_t*>(buffers[0]);
  const std::uint8_t* b = static_cast<const std::uint8_t*>(buffers[1]);
  char* y = static_cast<char*>(buffers[2]);
  const std::int64_t bytes = element_bytes_of(args.requantize.y);
  const std::int64_t part = args.pixels * args.lanes, strips = (part + kStrip - 1) / kStrip;
  const WorkRange range = split_work(args.outer * strips, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const std::int64_t outer = item / strips, first = item % strips * kStrip, at = outer * part + first;
    const std::int64_t count = min64(kStrip, part - first);
    if (!args.is_b_repeated) {
      run_strip<kIsProduct, kLanes>(args, a + at, b + at, y + at * bytes, count);
      continue;
    }
    // The 16 values, or 16 times the same one, as many times as a strip of vectors needs.
    std::uint8_t repeated[16];
    if (args.lanes == 16)
      std::memcpy(repeated, b + outer * 16, 16);
    else
      std::memset(repeated, b[outer], 16);
    if (kLanes == 16 || args.lanes == 1) {
      run_strip<kIsProduct, 0>(args, a + at, repeated, y + at * bytes, count);
    } else {
      std::uint8_t all[kStrip];
      for (std::int64_t i = 0; i < count; i += 16) std::memcpy(all + i, repeated, 16);
      run_strip<kIsProduct, kLanes>(args, a + at, all, y + at * bytes, count);
    }
  }
}

void binary_bytes(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const BinaryBytesArgs& args = *static_cast<const BinaryBytesArgs*>(raw_args);
  if (args.is_product)
    run<true>(args, buffers, context);
  else
    run<false>(args, buffers, context);
}

}  // namespace

extern const KernelEntry binary_bytes_kernels[] = {{"binary_bytes", binary_bytes, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
