// bf16 matrix products against a scalar reference on the rounded operands: tails, layouts, types and epilogues, on
// every instruction set.
#include <algorithm>
#include <limits>

#include "kernels/gemm_tiled.hpp"
#include "kernels/prepare/codes.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_operation_common.hpp"
#include "kernels_reference_common.hpp"

namespace engine {
extern const OperationEntry gemm_tiled_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Operand {
  bool is_f32 = false, is_blocked = false;
  std::int64_t gap = 0;  // elements between rows, or blocks
};

struct Gemm {
  std::int64_t m, n, k;
  GemmOperands operands = {};
  EpilogueArgs epilogue = {};
  Operand a = {}, c = {}, residual = {};
  bool transposed = false;
  std::vector<std::int64_t> tiling = {};  // vectors, pixels, tile_block
  int widened = -1;                       // few rows: the algorithm, or -1 for the one that is chosen here
};

Bytes bytes_of(Guarded& buffer) {
  return {buffer.data(), buffer.values().size() * sizeof(float)};
}
Bytes bytes_of(GuardedBf16& buffer) {
  return {buffer.data(), buffer.values().size() * sizeof(Bf16)};
}
Bytes bytes_of(GuardedEither& buffer) {
  return {buffer.data(), buffer.size()};
}

std::int64_t row_of(const Operand& operand, std::int64_t rows, std::int64_t columns) {
  return (operand.is_blocked ? rows * 16 : columns) + operand.gap;
}
std::size_t size_of(const Operand& operand, std::int64_t rows, std::int64_t columns) {
  return (operand.is_blocked ? (columns + 15) / 16 : rows) * row_of(operand, rows, columns);
}
std::int64_t at(const Operand& operand, std::int64_t rows, std::int64_t columns, std::int64_t r, std::int64_t c) {
  const std::int64_t row = row_of(operand, rows, columns);
  return operand.is_blocked ? c / 16 * row + r * 16 + c % 16 : r * row + c;
}

// Memory between elements is NaN.
std::vector<float> lay_out(const Operand& operand, const std::vector<float>& plain, std::int64_t rows,
                           std::int64_t columns) {
  std::vector<float> result(size_of(operand, rows, columns), kNan);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) result[at(operand, rows, columns, r, c)] = plain[r * columns + c];
  return result;
}

AttributeMap attributes_of(const Gemm& g) {
  AttributeMap map{{"m", g.m}, {"n", g.n}, {"k", g.k}};
  const auto view = [&](const std::string& name, const Operand& operand, std::int64_t rows, std::int64_t columns) {
    map[name + "_layout"] = std::int64_t{operand.is_blocked};
    map[name + "_f32"] = std::int64_t{operand.is_f32};
    map[name + "_row"] = row_of(operand, rows, columns);
  };
  view("a", g.a, g.m, g.k);
  view("c", g.c, g.m, g.n);
  if (g.operands.has_residual) view("residual", g.residual, g.m, g.n);
  map["bias"] = std::int64_t{g.operands.has_bias};
  map["scale"] = std::int64_t{g.operands.has_scale};
  map["residual"] = std::int64_t{g.operands.has_residual};
  map["activation"] = name_of(g.epilogue.activation);
  map["alpha"] = double{g.epilogue.alpha};
  map["beta"] = double{g.epilogue.beta};
  map["residual_after"] = std::int64_t{g.epilogue.residual_after};
  if (g.widened >= 0) map["widened"] = std::int64_t{g.widened};
  if (!g.tiling.empty()) {
    map["vectors"] = g.tiling[0];
    map["pixels"] = g.tiling[1];
    map["tile_block"] = g.tiling[2];
  }
  return map;
}

void check(const Target& target, const Gemm& g, int workers = 3, std::vector<float> a = {}) {
  const std::string what = "m" + std::to_string(g.m) + " n" + std::to_string(g.n) + " k" + std::to_string(g.k);
  if (a.empty()) a = random_floats(g.m * g.k, 1);
  const auto b = random_floats(g.k * g.n, 2);
  auto bias = random_floats(g.n, 3), scale = random_floats(g.n, 4), residual = random_floats(g.m * g.n, 5);
  if (!g.residual.is_f32) residual = rounded(residual);
  const auto factor_a = rounded(a), factor_b = rounded(b);
  std::vector<float> expected(g.m * g.n);
  for (std::int64_t r = 0; r < g.m; ++r)
    for (std::int64_t c = 0; c < g.n; ++c) {
      double sum = 0;
      for (std::int64_t d = 0; d < g.k; ++d)
        sum += double{factor_a[r * g.k + d]} * (g.transposed ? factor_b[c * g.k + d] : factor_b[d * g.n + c]);
      const std::int64_t i = r * g.n + c;
      expected[i] = static_cast<float>(reference::finish(g.epilogue, sum, g.operands.has_scale ? &scale[c] : nullptr,
                                                         g.operands.has_bias ? &bias[c] : nullptr,
                                                         g.operands.has_residual ? &residual[i] : nullptr));
    }

  Guarded source(b);
  GuardedBf16 packed(std::vector<float>((g.n + 31) / 32 * 32 * std::max<std::int64_t>(32, (g.k + 31) / 32 * 32), kNan));
  AttributeMap pack_map{{"n", g.n}, {"k", g.k}, {"transposed", std::int64_t{g.transposed}}};
  if (!g.tiling.empty()) pack_map["vectors"] = g.tiling[0];
  run_operation(target, gemm_tiled_operations, "pack_gemm_bf16", pack_map, {bytes_of(source)}, {bytes_of(packed)}, 2);

  GuardedEither input(lay_out(g.a, a, g.m, g.k), g.a.is_f32);
  GuardedEither added(lay_out(g.residual, residual, g.m, g.n), g.residual.is_f32);
  bias.resize((g.n + 15) / 16 * 16, kNan);
  scale.resize((g.n + 15) / 16 * 16, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale);
  GuardedEither output(std::vector<float>(size_of(g.c, g.m, g.n), kNan), g.c.is_f32);
  std::vector<Bytes> inputs{bytes_of(input), bytes_of(packed)};
  if (g.operands.has_bias) inputs.push_back(bytes_of(bias_buffer));
  if (g.operands.has_scale) inputs.push_back(bytes_of(scale_buffer));
  if (g.operands.has_residual) inputs.push_back(bytes_of(added));
  run_operation(target, gemm_tiled_operations, "gemm_bf16", attributes_of(g), inputs, {bytes_of(output)}, workers);
  expect(packed.intact() && output.intact(), what + ": overrun");
  const auto stored = output.values();
  std::vector<float> actual(g.m * g.n);
  std::vector<bool> is_element(stored.size());
  for (std::int64_t r = 0; r < g.m; ++r)
    for (std::int64_t c = 0; c < g.n; ++c) {
      actual[r * g.n + c] = stored[at(g.c, g.m, g.n, r, c)];
      is_element[at(g.c, g.m, g.n, r, c)] = true;
    }
  expect_close(expected, actual, bf16_tolerance(g.k, g.c.is_f32), what);
  if (!g.c.is_blocked)
    for (std::size_t i = 0; i < stored.size(); ++i)
      if (!is_element[i] && stored[i] == stored[i]) expect(false, what + ": wrote between rows");
}

void tails(const Target& target) {
  for (const std::int64_t m : {1, 2, 5, 14, 15, 29})
    for (std::int64_t n = 1; n <= 70; n += n < 34 ? 1 : 7)
      for (const std::int64_t k : {1, 2, 15, 16, 33})
        check(target, {m, n, k, {true, false, n % 2 == 0}, {}, {n % 3 == 0}, {n % 2 == 0}});
}

void few_rows(const Target& target) {
  // A build for this machine leaves out rows, so that a set that no plan uses may have one kernel and not the other.
  if (target.traits<TileTraits>("gemm_bf16").lanes != target.traits<std::int32_t>("gemm_few_bf16")) return;
  for (std::int64_t m = 1; m <= kFewRows; ++m)
    for (const int widened : {0, 1}) {
      for (std::int64_t n = 1; n <= 70; n += n < 34 ? 1 : 7)
        for (const std::int64_t k : {0, 1, 2, 15, 16, 33, 70}) {
          Gemm g{m, n, k, {true, n % 3 == 0, n % 2 == 0}, {}, {n % 3 == 0, false, n % 5}, {n % 2 == 0, false, n % 7}};
          g.residual = {n % 4 == 0, false, n % 3};
          g.widened = widened;
          check(target, g, 1 + static_cast<int>(k % 3));
        }
      for (int i = 0; i < static_cast<int>(Activation::kCount); ++i) {
        Gemm g{m, 37, 40, {true, false, true}, {static_cast<Activation>(i), 0.4f, 0.6f, m % 2 == 0}, {}, {i % 2 == 0}};
        g.widened = widened;
        check(target, g);
      }
      for (const std::int64_t vectors : {1, 2}) {
        Gemm g{m, 100, 64, {}, {}, {true}, {true}, {}, true, {vectors, 0, 0}};
        g.widened = widened;
        check(target, g, 6);
      }
      std::vector<float> a = random_floats(m * 50, 6);
      a[7] = kNan;
      a[m * 50 - 3] = std::numeric_limits<float>::infinity();
      Gemm g{m, 40, 50, {}, {}, {true}, {true}};
      g.widened = widened;
      check(target, g, 3, a);
    }
}

void layouts_and_types(const Target& target) {
  for (int bits = 0; bits < 64; ++bits)
    for (const std::int64_t n : {16, 51}) {
      const auto is = [&](int bit) { return (bits >> bit & 1) != 0; };
      const std::int64_t gap = 16 * (bits % 3);
      check(target, {17,
                     n,
                     37,
                     {true, true, true},
                     {},
                     {is(0), is(1), gap},
                     {is(2), is(3), gap},
                     {is(4), is(5), gap},
                     bits % 2 == 0});
    }
}

void every_tile(const Target& target) {
  const TileTraits& traits = target.traits<TileTraits>("gemm_bf16");
  for (int vectors = 1; vectors <= traits.max_vectors; ++vectors)
    for (int pixels = 1; pixels <= traits.max_pixels[vectors]; ++pixels)
      check(target,
            {31, 90, 21, {true, false, true}, {}, {true}, {true}, {true}, false, {vectors, pixels, pixels % 4}});
}

void workers(const Target& target) {
  for (int count = 1; count <= 6; ++count)
    for (const std::int64_t block : {0, 1, 3})
      check(target, {40, 100, 32, {}, {}, {}, {}, {}, false, {1, 5, block}}, count);
}

void empty_and_activated(const Target& target) {
  check(target, {0, 4, 4});
  check(target, {4, 0, 4});
  check(target, {4, 20, 0, {true, false, false}});
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true})
      for (const bool is_f32 : {false, true})
        check(target, {9,
                       37,
                       12,
                       {true, false, true},
                       {static_cast<Activation>(i), 0.4f, 0.6f, after},
                       {true},
                       {is_f32},
                       {!is_f32}});
}

void not_finite(const Target& target) {
  std::vector<float> a = random_floats(20 * 33, 6);
  a[40] = kNan;
  a[200] = std::numeric_limits<float>::infinity();
  check(target, {20, 40, 33, {true, false, false}, {Activation::kClip, 0.0f, 1.0f, false}}, 3, a);
  check(target, {20, 40, 33, {}, {}, {true}, {true}}, 3, a);
}

void refusals(const Target& target) {
  const auto is_refused = [&](std::int64_t m, std::int64_t n, std::int64_t k, AttributeMap map, const char* message) {
    for (const auto& [name, value] : {std::pair{"m", m}, {"n", n}, {"k", k}}) map[name] = value;
    expect_refused(target, gemm_tiled_operations, "gemm_bf16", map, {0, 0}, {0}, message);
  };
  is_refused(4, 4, -1, {}, "\"k\"");
  is_refused(std::int64_t{1} << 30, std::int64_t{1} << 30, std::int64_t{1} << 30, {}, "");  // overflows
  is_refused(4, 4, 4, {}, "32 at least");
  is_refused(0, 4, 0, {{"c_row", std::int64_t{3}}}, "\"c_row\"");
  is_refused(0, 4, 0, {{"a_f32", std::int64_t{2}}}, "\"a_f32\"");
  is_refused(0, 4, 0, {{"vectors", std::int64_t{9}}}, "\"vectors\"");
  is_refused(0, 4, 0, {{"widened", std::int64_t{1}}}, "\"widened\"");
  is_refused(5, 4, 0, {{"widened", std::int64_t{1}}}, "\"widened\"");
  is_refused(4, 4, 0, {{"widened", std::int64_t{1}}, {"a_layout", std::int64_t{1}}}, "\"widened\"");
}

}  // namespace

int main() {
  return run_cases({{"tails", tails},
                    {"few rows", few_rows},
                    {"layouts and types", layouts_and_types},
                    {"every tile", every_tile},
                    {"workers", workers},
                    {"empty and activated", empty_and_activated},
                    {"not finite", not_finite},
                    {"refusals", refusals}},
                   {"gemm_bf16", "gemm_few_bf16", "gemm_amx_bf16"});
}
