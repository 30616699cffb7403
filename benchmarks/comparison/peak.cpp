// The machine's arithmetic peak: chains of fused multiply-adds in registers, in all threads at once.
//
//   peak THREADS     prints GFLOP/s of float32, then of bfloat16 products (0 if the CPU has no such instruction)
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kChains = 24;
#elif defined(__AVX__)
constexpr int kBytes = 32, kChains = 12;
#else
constexpr int kBytes = 16, kChains = 12;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));
constexpr long kRounds = 200000;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double f32_operations(volatile float* sink) {
  Vector sums[kChains] = {};
  Vector factor = Vector{} + 0.999f, term = Vector{} + 1e-3f;
  asm volatile("" : "+m"(factor), "+m"(term));
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + term;
  }
  for (const Vector& sum : sums) *sink = *sink + sum[0];
  return 2.0 * kRounds * kChains * (kBytes / sizeof(float));
}

#if defined(__AVX512BF16__)
double bf16_operations(volatile float* sink) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512bh factors = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factors, factors);
    asm volatile("" : "+v"(factors));
  }
  for (const __m512& sum : sums) *sink = *sink + _mm512_cvtss_f32(sum);
  return 2.0 * kRounds * kChains * 32;
}
#else
double bf16_operations(volatile float*) { return 0; }
#endif

// The best of several runs of all threads, in GFLOP/s.
double best(double (*operations)(volatile float*), int threads) {
  double result = 0;
  for (int run = 0; run < 12; ++run) {
    std::vector<double> counts(threads);
    std::vector<std::thread> workers;
    const double begin = seconds();
    for (int i = 0; i < threads; ++i)
      workers.emplace_back([&counts, i, operations] {
        volatile float sink = 0;
        counts[i] = operations(&sink);
      });
    double total = 0;
    for (int i = 0; i < threads; ++i) workers[i].join(), total += counts[i];
    const double rate = total / (seconds() - begin) / 1e9;
    if (rate > result) result = rate;
  }
  return result;
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  std::printf("%.1f %.1f\n", best(f32_operations, threads), best(bf16_operations, threads));
}
