#include "kernels/prepare/product_rates.hpp"

#include <algorithm>
#include <chrono>

#include "kernels/rate_bf16.hpp"

namespace engine {
namespace {

// The best of several runs, which alternate between the two, since the clock may change and other threads may
// interrupt. For about 20 us after a pause, CPUs execute 512-bit instructions at a quarter of their rate, so every run
// is longer than that.
constexpr int kRuns = 12;
constexpr RateArgs kRun = {4000};

double rate_of(const KernelEntry& kernel) {
  alignas(64) float result[64];
  void* const buffers[] = {result};
  const auto start = std::chrono::steady_clock::now();
  kernel.run(&kRun, buffers, {0, 1, nullptr});
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return *static_cast<const double*>(kernel.traits) * static_cast<double>(kRun.repeats) / std::max(1.0, time.count());
}

ProductRates measure(const KernelEntry& fma, const KernelEntry& dot) {
  ProductRates rates = {};
  for (int i = 0; i < kRuns; ++i) {
    rates.f32 = std::max(rates.f32, rate_of(fma));
    rates.bf16 = std::max(rates.bf16, rate_of(dot));
  }
  return rates;
}

}  // namespace

std::optional<ProductRates> product_rates(const KernelLookup& kernels) {
  const KernelEntry *fma = kernels.find_or_null("rate_bf16_fma"), *dot = kernels.find_or_null("rate_bf16_dot");
  if (fma == nullptr || dot == nullptr) return std::nullopt;
  static const ProductRates rates = measure(*fma, *dot);
  return rates;
}

}  // namespace engine
