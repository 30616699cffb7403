// rate_bf16_dot, rate_bf16_fma: products in registers, in bf16 and in f32, to measure how many a core computes in a
// given time. Arguments: RateArgs; operand: kLanes floats, the result, which means nothing.
#include "kernels/rate_bf16.hpp"

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// Enough sums that none waits for the previous product.
constexpr int kSums = 20;

template <bool kIsDot>
ENGINE_INLINE void multiply(const void* raw_args, void* const* buffers) {
  const std::int64_t repeats = static_cast<const RateArgs*>(raw_args)->repeats;
  Vec sums[kSums] = {};
  const Vec x = broadcast(1.0f);
  for (std::int64_t i = 0; i < repeats; ++i) {
#pragma GCC unroll 20
    for (int s = 0; s < kSums; ++s) {
      sums[s] = kIsDot ? dot_pairs((VecInt)x, (VecInt)x, sums[s]) : fma(x, x, sums[s]);
#if defined(__aarch64__)
      __asm__ volatile("" : "+w"(sums[s]));
#else
      __asm__ volatile("" : "+v"(sums[s]));
#endif
    }
  }
  // Unrolled: otherwise the sums would be an array in memory, and the memory's rate would be measured.
#pragma GCC unroll 20
  for (int s = 1; s < kSums; ++s) sums[0] += sums[s];
  store(static_cast<float*>(buffers[0]), sums[0]);
}

void rate_bf16_dot(const void* args, void* const* buffers, const KernelContext&) {
  multiply<true>(args, buffers);
}

void rate_bf16_fma(const void* args, void* const* buffers, const KernelContext&) {
  multiply<false>(args, buffers);
}

// Multiplications of one repetition.
const double kDotWork = 2.0 * kLanes * kSums, kFmaWork = 1.0 * kLanes * kSums;

}  // namespace

extern const KernelEntry rate_bf16_kernels[] = {{"rate_bf16_dot", rate_bf16_dot, &kDotWork},
                                                {"rate_bf16_fma", rate_bf16_fma, &kFmaWork},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
