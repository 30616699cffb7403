// The emulation of AMX's tiles against scalar loops; and products on tiles that are larger than in the tests of each
// kernel: long reductions, and more rows than stay in cache.
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstring>

#include "kernels/prepare/codes.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_bytes_common.hpp"
#include "kernels_operation_common.hpp"
#include "simd/tiles.hpp"

namespace engine {
extern const OperationEntry gemm_tiled_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;
namespace emulated = engine::generic::tiles::emulated;

namespace {

constexpr int kRows = 16, kDwords = 16;

void emulated_bf16(const Target&) {
  const auto a = to_bf16(random_floats(kRows * 2 * kDwords, 1)), b = to_bf16(random_floats(kRows * 2 * kDwords, 2));
  std::vector<float> c = random_floats(kRows * kDwords, 3), expected = c;
  for (int m = 0; m < kRows; ++m)
    for (int n = 0; n < kDwords; ++n) {
      double sum = c[m * kDwords + n];
      for (int k = 0; k < 2 * kDwords; ++k)
        sum += double{to_f32(a[m * 32 + k])} * to_f32(b[k / 2 * 32 + n * 2 + k % 2]);
      expected[m * kDwords + n] = static_cast<float>(sum);
    }
  emulated::configure();
  emulated::load<0>(c.data(), 64);
  emulated::load<4>(a.data(), 64);
  emulated::load_streamed<6>(b.data(), 64);
  emulated::multiply_bf16<0, 4, 6>();
  emulated::store<0>(c.data(), 64);
  emulated::release();
  expect_close(expected, c, sum_tolerance(32), "a product of tiles");
}

void emulated_denormals(const Target&) {
  // 2^-130 is denormal, and so is 2^-70 * 2^-70.
  const Bf16 tiny = engine::to_bf16(std::ldexp(1.0f, -130)), small = engine::to_bf16(std::ldexp(1.0f, -70));
  const Bf16 large = engine::to_bf16(std::ldexp(1.0f, 100));
  for (const auto& [x, y] : {std::pair{tiny, large}, std::pair{large, tiny}, std::pair{small, small}}) {
    const std::vector<Bf16> a(512, x), b(512, y);
    std::vector<float> c(256, 1.0f);
    emulated::configure();
    emulated::clear<1>();
    emulated::load<2>(a.data(), 64);
    emulated::load<3>(b.data(), 64);
    emulated::multiply_bf16<1, 2, 3>();
    emulated::store<1>(c.data(), 64);
    emulated::release();
    expect(c == std::vector<float>(256, 0.0f), "denormals are not zero");
  }
}

#if defined(__x86_64__)
// Whether this process may use tiles, and the CPU multiplies bf16 and bytes in them.
bool has_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx >> 22 & edx >> 24 & edx >> 25 & 1)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// bf16 or f32 of the exponents from `least` to `most`, whose upper bits are these.
std::uint32_t bits_of(std::uint32_t random, int least, int most) {
  const std::uint32_t exponent =
      static_cast<std::uint32_t>(least + static_cast<int>(random >> 8 & 0xff) % (most - least + 1));
  return (random & 0x80000000u) | exponent << 23 | (random & 0xffu) << 15 | (random >> 16 & 0x7fffu);
}

template <class Product, class EmulatedProduct>
void same_bits(const std::vector<std::uint32_t>& operands, Product product, EmulatedProduct emulated_product,
               const std::string& what) {
  namespace native = engine::generic::tiles::native;
  std::vector<std::uint32_t> actual(256), expected(256);
  const std::uint32_t *a = operands.data(), *b = a + 256, *c = b + 256;
  native::configure();
  native::load<0>(c, 64);
  native::load<1>(a, 64);
  native::load<2>(b, 64);
  product();
  native::store<0>(expected.data(), 64);
  native::release();
  emulated::configure();
  emulated::load<0>(c, 64);
  emulated::load<1>(a, 64);
  emulated::load<2>(b, 64);
  emulated_product();
  emulated::store<0>(actual.data(), 64);
  emulated::release();
  expect(actual == expected, "the emulation differs from the CPU: " + what);
}

// Sums of usual values, sums that cancel, of denormal products, that overflow, and of all values, including those that
// are not finite: so tests of emulated kernels also hold for AMX.
void emulated_is_what_the_cpu_computes(const Target&) {
  namespace native = engine::generic::tiles::native;
  if (!has_tiles()) return;
  struct Exponents {
    int least, most, least_sum, most_sum;
  };
  std::uint32_t random = 1;
  for (const Exponents& e : {Exponents{120, 133, 120, 135},
                             {60, 67, 0, 12},
                             {185, 192, 240, 254},
                             {0, 255, 0, 255},
                             {0, 130, 0, 20},
                             {127, 127, 128, 128}})
    for (int round = 0; round < 100; ++round) {
      std::vector<std::uint32_t> operands(3 * 256);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const auto next = [&] { return random = random * 1664525u + 1013904223u; };
        const std::uint32_t value =
            bits_of(next() ^ next() >> 16, i < 512 ? e.least : e.least_sum, i < 512 ? e.most : e.most_sum);
        operands[i] = i < 512 ? value >> 16 | (bits_of(next() ^ next() >> 16, e.least, e.most) & 0xffff0000u) : value;
      }
      const std::string what = "exponents from " + std::to_string(e.least) + " to " + std::to_string(e.most);
      same_bits(operands, native::multiply_bf16<0, 1, 2>, emulated::multiply_bf16<0, 1, 2>, what);
      same_bits(operands, native::multiply_u8s8<0, 1, 2>, emulated::multiply_u8s8<0, 1, 2>, "bytes");
    }
}
#else
void emulated_is_what_the_cpu_computes(const Target&) {}
#endif

void emulated_int8(const Target&) {
  const ByteVector a = random_bytes(1024, 4), b = random_bytes(1024, 5);
  const auto start = random_bytes(1024, 6);
  std::vector<std::int32_t> c = values_of_bytes<std::int32_t>(start), expected = c;
  for (int m = 0; m < kRows; ++m)
    for (int n = 0; n < kDwords; ++n)
      for (int k = 0; k < 64; ++k) {
        const int product =
            static_cast<unsigned char>(a[m * 64 + k]) * static_cast<signed char>(b[k / 4 * 64 + n * 4 + k % 4]);
        std::uint32_t& sum = reinterpret_cast<std::uint32_t&>(expected[m * kDwords + n]);
        sum += static_cast<std::uint32_t>(product);
      }
  emulated::configure();
  emulated::load<7>(c.data(), 64);
  emulated::load<0>(a.data(), 64);
  emulated::load<1>(b.data(), 64);
  emulated::multiply_u8s8<7, 0, 1>();
  emulated::store<7>(c.data(), 64);
  emulated::release();
  expect(expected == c, "a product of tiles of bytes");
}

void emulated_strides(const Target&) {
  const ByteVector from = random_bytes(16 * 200, 7);
  ByteVector to(16 * 100, 1);
  emulated::configure();
  emulated::load<5>(from.data(), 200);
  emulated::store<5>(to.data(), 100);
  emulated::release();
  for (int r = 0; r < kRows; ++r) {
    expect(std::memcmp(&from[r * 200], &to[r * 100], 64) == 0, "a row of a tile");
    for (int i = 64; i < 100; ++i) expect(to[r * 100 + i] == 1, "memory between rows was written");
  }
}

struct Size {
  std::int64_t m, n, k;
};
// More steps than rows of a block need; more rows than stay in cache; many rows with few weights, which workers share.
constexpr Size kLarge[] = {{70, 70, 600}, {16, 130, 700}, {200, 33, 3300}, {300, 40, 40}};

void large_bf16(const Target& target) {
  for (const Size& size : kLarge)
    for (const int workers : {1, 3}) {
      const auto a = rounded(random_floats(size.m * size.k, 8)), b = rounded(random_floats(size.k * size.n, 9));
      std::vector<float> expected(size.m * size.n);
      for (std::int64_t r = 0; r < size.m; ++r) {
        std::vector<double> sums(size.n);
        for (std::int64_t k = 0; k < size.k; ++k)
          for (std::int64_t c = 0; c < size.n; ++c) sums[c] += double{a[r * size.k + k]} * b[k * size.n + c];
        for (std::int64_t c = 0; c < size.n; ++c) expected[r * size.n + c] = static_cast<float>(sums[c]);
      }
      Guarded source(b), input(a), output(size.m * size.n);
      Guarded packed(static_cast<std::size_t>((size.n + 31) / 32 * 32 * ((size.k + 31) / 32 * 32) / 2));
      const AttributeMap shape{
          {"m", size.m}, {"n", size.n}, {"k", size.k}, {"a_f32", std::int64_t{1}}, {"c_f32", std::int64_t{1}}};
      run_operation(target, gemm_tiled_operations, "pack_gemm_bf16", {{"n", size.n}, {"k", size.k}}, {&source},
                    {&packed}, 2);
      run_operation(target, gemm_tiled_operations, "gemm_bf16", shape, {&input, &packed}, {&output}, workers);
      expect(output.intact() && packed.intact(), "overrun");
      expect_close(expected, output.values(), bf16_tolerance(size.k, true),
                   "m" + std::to_string(size.m) + " n" + std::to_string(size.n) + " k" + std::to_string(size.k));
    }
}

void large_int8(const Target& target) {
  for (const Size& size : kLarge)
    for (const int workers : {1, 3}) {
      const auto count = [](std::int64_t values) { return static_cast<std::size_t>(values); };
      const ByteVector a = random_bytes(count(size.m * size.k), 10), b = random_bytes(count(size.k * size.n), 11);
      std::vector<std::int32_t> expected(count(size.m * size.n));
      for (std::int64_t r = 0; r < size.m; ++r)
        for (std::int64_t k = 0; k < size.k; ++k)
          for (std::int64_t c = 0; c < size.n; ++c)
            expected[count(r * size.n + c)] += static_cast<unsigned char>(a[count(r * size.k + k)]) *
                                               static_cast<signed char>(b[count(k * size.n + c)]);
      const std::int64_t columns = (size.n + 15) / 16 * 16;
      const ByteVector start = bytes_of_values(std::vector<std::int32_t>(count(columns)));
      const ByteVector scale = bytes_of_values(std::vector<float>(count(columns), 1.0f));
      std::vector<ByteVector> packed{ByteVector(count((size.n + 31) / 32 * 32 * ((size.k + 63) / 64 * 64)))};
      run_bytes(target, gemm_tiled_operations, "pack_gemm_int8", {{"n", size.n}, {"k", size.k}}, {b}, packed, 4, 2);
      std::vector<ByteVector> results{ByteVector(count(size.m * size.n * 4))};
      run_bytes(target, gemm_tiled_operations, "gemm_int8",
                {{"m", size.m}, {"n", size.n}, {"k", size.k}, {"y", std::string("i32")}}, {a, packed[0], start, scale},
                results, 4, workers);
      expect(values_of_bytes<std::int32_t>(results[0]) == expected,
             "m" + std::to_string(size.m) + " n" + std::to_string(size.n) + " k" + std::to_string(size.k));
    }
}

}  // namespace

int main() {
  const int failed = run_cases({{"emulated bf16", emulated_bf16},
                                {"emulated denormals", emulated_denormals},
                                {"emulated as by the CPU", emulated_is_what_the_cpu_computes},
                                {"emulated int8", emulated_int8},
                                {"emulated strides", emulated_strides}});
  return failed + run_cases({{"large bf16", large_bf16}, {"large int8", large_int8}}, {"gemm_amx_bf16", "gemm_bf16"});
}
