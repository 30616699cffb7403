// The machine's arithmetic peak: chains of fused multiply-adds in registers, in all threads at once.
//
//   peak THREADS     prints GFLOP/s of float32, then of bfloat16 products by vectors or by the tiles of AMX, whichever
//                    are faster (0 if the CPU has no such instruction)
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#define PEAK_HAS_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
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

#if defined(PEAK_HAS_TILES)
// Whether the CPU multiplies tiles of bfloat16, and Linux permits it.
bool has_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

double tile_operations(volatile float*) {
  struct alignas(64) Config {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  };
  static const Config config = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  asm volatile("ldtilecfg %0" : : "m"(config));
  for (long round = 0; round < kRounds; ++round)
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  asm volatile("tilerelease");
  return 2.0 * kRounds * 4 * 16 * 16 * 32;
}
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
  double bf16 = best(bf16_operations, threads);
#if defined(PEAK_HAS_TILES)
  if (has_tiles()) {
    const double tiles = best(tile_operations, threads);
    if (tiles > bf16) bf16 = tiles;
  }
#endif
  std::printf("%.1f %.1f\n", best(f32_operations, threads), bf16);
}
