// Matrix products against a scalar reference: tails, layouts, strides, batches and epilogues, on every instruction set.
#include <cmath>
#include <limits>
#include "kernels/gemm.hpp"
#include "kernels/prepare/codes.hpp"
#include "kernels_operation_common.hpp"
#include "kernels_reference_common.hpp"
#include "simd/bf16.hpp"

namespace engine {
extern const OperationEntry gemm_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A batch of matrices in a buffer, with the strides that are passed to the operation.
struct Operand {
  bool is_blocked = false;
  std::int64_t gap = 0;      // floats between rows
  std::vector<bool> shared;  // for each batch dimension: one matrix for all
};

struct Gemm {
  std::int64_t m, n, k;
  GemmOperands operands = {};
  EpilogueArgs epilogue = {};
  Ints batch = {};
  Operand a = {}, b = {}, c = {}, residual = {};
  bool is_packed = true, transposed = false;
  Ints tiling = {};                         // vectors, pixels, tile_block, depth
  ElementCode element = ElementCode::kF32;  // of a packed B
};

struct Placed {
  std::int64_t row, size;
  Ints strides;  // of the batch dimensions
};

Placed place(const Gemm& g, const Operand& operand, std::int64_t rows, std::int64_t columns) {
  Placed placed;
  placed.row = operand.is_blocked ? rows * 16 + operand.gap : columns + operand.gap;
  placed.size = (operand.is_blocked ? (columns + 15) / 16 : rows) * placed.row;
  placed.strides.resize(g.batch.size());
  for (std::size_t d = g.batch.size(); d-- > 0;) {
    const bool is_shared = d < operand.shared.size() && operand.shared[d];
    placed.strides[d] = is_shared ? 0 : placed.size;
    if (!is_shared) placed.size *= g.batch[d];
  }
  return placed;
}

std::int64_t at(const Placed& placed, const Gemm& g, const Operand& operand, std::int64_t matrix, std::int64_t row,
                std::int64_t column) {
  std::int64_t offset =
      operand.is_blocked ? column / 16 * placed.row + row * 16 + column % 16 : row * placed.row + column;
  for (std::size_t d = g.batch.size(); d-- > 0; matrix /= g.batch[d]) offset += matrix % g.batch[d] * placed.strides[d];
  return offset;
}

std::int64_t count(const Gemm& g) {
  std::int64_t matrices = 1;
  for (const std::int64_t dim : g.batch) matrices *= dim;
  return matrices;
}

std::string describe(const Gemm& g) {
  return "b" + std::to_string(count(g)) + " m" + std::to_string(g.m) + " n" + std::to_string(g.n) + " k" +
         std::to_string(g.k) + (g.is_packed ? "" : " unpacked") + (g.transposed ? " transposed" : "");
}

// Operand `x` with these dimensions, filled with values; gaps are NaN.
std::vector<float> fill(const Gemm& g, const Operand& operand, std::int64_t rows, std::int64_t columns,
                        std::uint32_t seed) {
  const Placed placed = place(g, operand, rows, columns);
  std::vector<float> result(placed.size, kNan);
  const auto values = random_floats(count(g) * rows * columns, seed);
  for (std::int64_t i = 0; i < count(g); ++i)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        result[at(placed, g, operand, i, r, c)] = values[(i * rows + r) * columns + c];
  return result;
}

AttributeMap attributes_of(const Gemm& g) {
  AttributeMap map{{"m", g.m}, {"n", g.n}, {"k", g.k}, {"batch", g.batch}};
  const auto view = [&](const std::string& name, const Operand& operand, std::int64_t rows, std::int64_t columns) {
    const Placed placed = place(g, operand, rows, columns);
    map[name + "_layout"] = std::int64_t{operand.is_blocked};
    map[name + "_row"] = placed.row;
    map[name + "_batch"] = placed.strides;
  };
  view("a", g.a, g.m, g.k);
  view("c", g.c, g.m, g.n);
  if (g.operands.has_residual) view("residual", g.residual, g.m, g.n);
  const Placed b = g.transposed ? place(g, g.b, g.n, g.k) : place(g, g.b, g.k, g.n);
  if (!g.is_packed) {
    map["packed"] = std::int64_t{0};
    map["transposed"] = std::int64_t{g.transposed};
    map["b_row"] = b.row;
    map["b_batch"] = b.strides;
  } else {
    // Packed matrices are in the same order as the unpacked ones.
    Ints strides;
    const std::int64_t matrix = (g.transposed ? g.n : g.k) * b.row;
    for (const std::int64_t stride : b.strides) strides.push_back(matrix == 0 ? 0 : stride / matrix);
    map["b_batch"] = strides;
  }
  map["bias"] = std::int64_t{g.operands.has_bias};
  map["scale"] = std::int64_t{g.operands.has_scale};
  map["residual"] = std::int64_t{g.operands.has_residual};
  map["activation"] = name_of(g.epilogue.activation);
  map["alpha"] = double{g.epilogue.alpha};
  map["beta"] = double{g.epilogue.beta};
  map["residual_after"] = std::int64_t{g.epilogue.residual_after};
  if (!g.tiling.empty()) {
    map["vectors"] = g.tiling[0];
    map["pixels"] = g.tiling[1];
    map["tile_block"] = g.tiling[2];
    if (g.tiling.size() > 3) map["depth"] = g.tiling[3];
  }
  if (g.element != ElementCode::kF32) map["b_element"] = name_of(g.element);
  return map;
}

// Values that are exact in `element`: normal numbers, and denormals of f16.
std::vector<float> exact(std::vector<float> values, ElementCode element) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (element == ElementCode::kBF16) values[i] = to_f32(to_bf16(values[i]));
    if (element == ElementCode::kF16) values[i] = std::rint(values[i] * 1024) / (i % 7 == 3 ? 0x1p24f : 1024.0f);
  }
  return values;
}

std::vector<float> pack(const Target& target, const Gemm& g, const std::vector<float>& b) {
  const Placed placed = g.transposed ? place(g, g.b, g.n, g.k) : place(g, g.b, g.k, g.n);
  const std::int64_t matrix = (g.transposed ? g.n : g.k) * placed.row;
  const std::int64_t matrices = matrix == 0 ? 1 : placed.size / matrix;
  const std::int64_t elements = matrices * ((g.n + 15) / 16 * 16) * g.k;
  Guarded source(b), packed(elements * weight_bytes(g.element) / 4, kNan);
  AttributeMap map{{"n", g.n},
                   {"k", g.k},
                   {"matrices", matrices},
                   {"transposed", std::int64_t{g.transposed}},
                   {"b_row", placed.row},
                   {"a_layout", std::int64_t{g.a.is_blocked}}};
  if (!g.tiling.empty()) map["vectors"] = g.tiling[0];
  if (g.element != ElementCode::kF32) map["b_element"] = name_of(g.element);
  run_operation(target, gemm_operations, "pack_gemm_f32", map, {&source}, {&packed}, 2);
  expect(packed.intact(), describe(g) + ": packing overran");
  return packed.values();
}

void check(const Target& target, const Gemm& g, int workers = 3, const std::vector<float>* given_a = nullptr) {
  const auto a = given_a ? *given_a : fill(g, g.a, g.m, g.k, 1);
  const auto b = exact(g.transposed ? fill(g, g.b, g.n, g.k, 2) : fill(g, g.b, g.k, g.n, 2), g.element);
  auto bias = random_floats(g.n, 3), scale = random_floats(g.n, 4);
  const auto residual = fill(g, g.residual, g.m, g.n, 5);
  const Placed pa = place(g, g.a, g.m, g.k), pc = place(g, g.c, g.m, g.n), pr = place(g, g.residual, g.m, g.n);
  const Placed pb = g.transposed ? place(g, g.b, g.n, g.k) : place(g, g.b, g.k, g.n);
  std::vector<float> expected;
  for (std::int64_t i = 0; i < count(g); ++i)
    for (std::int64_t r = 0; r < g.m; ++r)
      for (std::int64_t j = 0; j < g.n; ++j) {
        double sum = 0;
        for (std::int64_t d = 0; d < g.k; ++d)
          sum +=
              double{a[at(pa, g, g.a, i, r, d)]} * b[g.transposed ? at(pb, g, g.b, i, j, d) : at(pb, g, g.b, i, d, j)];
        expected.push_back(static_cast<float>(reference::finish(
            g.epilogue, sum, g.operands.has_scale ? &scale[j] : nullptr, g.operands.has_bias ? &bias[j] : nullptr,
            g.operands.has_residual ? &residual[at(pr, g, g.residual, i, r, j)] : nullptr)));
      }

  Guarded input(a), weights(g.is_packed ? pack(target, g, b) : b), added(residual);
  bias.resize((g.n + 15) / 16 * 16, kNan);
  scale.resize((g.n + 15) / 16 * 16, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale), output(pc.size, kNan);
  std::vector<Guarded*> inputs{&input, &weights};
  if (g.operands.has_bias) inputs.push_back(&bias_buffer);
  if (g.operands.has_scale) inputs.push_back(&scale_buffer);
  if (g.operands.has_residual) inputs.push_back(&added);
  run_operation(target, gemm_operations, "gemm_f32", attributes_of(g), inputs, {&output}, workers);
  expect(output.intact(), describe(g) + ": overrun");
  const auto stored = output.values();
  std::vector<float> actual;
  std::vector<bool> is_element(stored.size());
  for (std::int64_t i = 0; i < count(g); ++i)
    for (std::int64_t r = 0; r < g.m; ++r)
      for (std::int64_t j = 0; j < g.n; ++j) {
        actual.push_back(stored[at(pc, g, g.c, i, r, j)]);
        is_element[at(pc, g, g.c, i, r, j)] = true;
      }
  expect_close(expected, actual, sum_tolerance(g.k), describe(g));
  if (!g.c.is_blocked)
    for (std::size_t i = 0; i < stored.size(); ++i)
      if (!is_element[i] && !std::isnan(stored[i])) expect(false, describe(g) + ": wrote between rows");
}

void tails(const Target& target) {
  for (const std::int64_t m : {1, 2, 3, 4, 5, 14, 15, 29})
    for (std::int64_t n = 1; n <= 70; n += n < 34 ? 1 : 7)
      for (const std::int64_t k : {1, 15, 16, 33}) check(target, {m, n, k, {true, false, n % 2 == 0}});
}

void unpacked(const Target& target) {
  for (const bool transposed : {false, true})
    for (const std::int64_t gap : {0, 3})
      for (const std::int64_t m : {1, 2, 3, 4, 5, 20})
        for (const std::int64_t n : {1, 3, 4, 5, 16, 31, 33, 50})
          for (const std::int64_t k : {1, 4, 15, 16, 37}) {
            Gemm g{m, n, k, {true, m % 2 == 0, n % 2 == 1}};
            g.is_packed = false;
            g.transposed = transposed;
            g.a.gap = g.b.gap = g.c.gap = gap;
            check(target, g);
          }
}

// Many columns, so that an unpacked B is processed in several parts.
void wide(const Target& target) {
  for (const int workers : {1, 2, 5})
    for (const std::int64_t n : {1024, 1025, 2100}) {
      Gemm g{2, n, 9, {true, false, false}};
      g.is_packed = false;
      check(target, g, workers);
    }
}

void layouts(const Target& target) {
  for (const bool a : {false, true})
    for (const bool c : {false, true})
      for (const bool residual : {false, true})
        for (const std::int64_t n : {2, 16, 40, 51})
          for (const std::int64_t m : {2, 17})
            for (const bool transposed : {false, true})
              for (const bool is_packed : {false, true}) {
                Gemm g{m, n, 37, {true, true, true}};
                g.batch = {3};
                g.a.is_blocked = a;
                g.c.is_blocked = c;
                g.residual.is_blocked = residual;
                g.a.gap = g.c.gap = 16;
                g.transposed = transposed;
                g.is_packed = is_packed;
                check(target, g);
              }
}

// All combinations of broadcasting over two batch dimensions.
void batches(const Target& target) {
  for (int bits = 0; bits < 64; ++bits)
    for (const std::int64_t m : {1, 3, 7})
      for (const bool is_packed : {false, true}) {
        Gemm g{m, 21, 18, {false, false, true}};
        g.batch = {2, 3};
        const auto shared = [&](int shift) {
          return std::vector<bool>{(bits >> shift & 1) != 0, (bits >> shift & 2) != 0};
        };
        g.a.shared = shared(0);
        g.b.shared = shared(2);
        g.residual.shared = shared(4);
        g.is_packed = is_packed;
        check(target, g);
      }
}

// Heads interleaved in rows: the strides of a batch dimension are smaller than the strides of rows.
void interleaved(const Target& target) {
  for (const bool transposed : {false, true}) {
    const std::int64_t heads = 3, rows = 9, size = 20, keys = 11;
    const auto q = random_floats(rows * heads * size, 1), k = random_floats(keys * heads * size, 2);
    std::vector<float> expected(rows * heads * keys);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t j = 0; j < keys; ++j) {
          double sum = 0;
          for (std::int64_t d = 0; d < size; ++d) {
            const std::int64_t at_b = transposed ? (j * heads + h) * size + d : (d * heads + h) * keys + j;
            sum += double{q[(r * heads + h) * size + d]} * k[at_b];
          }
          expected[(r * heads + h) * keys + j] = static_cast<float>(sum);
        }
    Guarded input(q), weights(k), output(expected.size());
    run_operation(target, gemm_operations, "gemm_f32",
                  {{"m", rows},
                   {"n", keys},
                   {"k", size},
                   {"batch", Ints{heads}},
                   {"packed", std::int64_t{0}},
                   {"transposed", std::int64_t{transposed}},
                   {"a_row", heads * size},
                   {"a_batch", Ints{size}},
                   {"b_row", transposed ? heads * size : heads * keys},
                   {"b_batch", Ints{transposed ? size : keys}},
                   {"c_row", heads * keys},
                   {"c_batch", Ints{keys}}},
                  {&input, &weights}, {&output}, 2);
    expect(output.intact(), "interleaved: overrun");
    expect_close(expected, output.values(), sum_tolerance(size), "interleaved");
  }
}

// Products of rows with rows: few columns of long rows.
void columns(const Target& target) {
  for (const std::int64_t n : {1, 2, 3, 4})
    for (const std::int64_t m : {1, 2, 3, 4, 5, 11})
      for (const std::int64_t k : {128, 131, 200, 300}) check(target, {m, n, k, {true, n == 2, m == 3}});
}

// One column, which is read in place: rows that fill lanes, or not, and all of the epilogue.
void single_column(const Target& target) {
  for (const std::int64_t k : {1, 9, 16, 33, 64, 65, 100})
    for (const std::int64_t m : {1, 5, 16, 40})
      for (const bool is_after : {false, true}) {
        Gemm g{m, 1, k, {true, k == 9, m != 5}};
        g.is_packed = false;
        g.batch = {3};
        g.a.gap = m == 40 ? 3 : 0;
        g.c.gap = m == 16 ? 2 : 0;
        g.residual.gap = m == 40 ? 1 : 0;
        g.epilogue.activation = is_after ? Activation::kSigmoid : Activation::kClip;
        g.epilogue.residual_after = is_after && g.operands.has_residual;
        g.epilogue.alpha = is_after ? 0.0f : -0.4f;
        g.epilogue.beta = is_after ? 0.0f : 0.7f;
        check(target, g);
      }
}

// Rows of A that map to the same cache set, which use another tiling, also for few rows.
void long_rows(const Target& target) {
  for (const std::int64_t m : {1, 2, 3, 10})
    for (const std::int64_t n : {40, 100}) check(target, {m, n, 1024, {true, false, false}});
}

void every_tile(const Target& target) {
  const TileTraits& traits = target.traits<TileTraits>("gemm_f32");
  for (std::int64_t vectors = 1; vectors <= traits.max_product_vectors; ++vectors)
    for (std::int64_t pixels = 1; pixels <= traits.max_pixels[vectors]; ++pixels)
      for (const bool is_blocked : {false, true}) {
        Gemm g{31, 90, 21, {true, false, true}};
        g.batch = {2};
        g.a.is_blocked = is_blocked;
        g.tiling = {vectors, pixels, pixels % 4};
        check(target, g);
      }
}

// Parts of K, whose sums are kept in C.
void parts_of_depth(const Target& target) {
  for (const std::int64_t depth : {16, 32})
    for (const std::int64_t k : {1, 31, 32, 33, 64, 100})
      for (const std::int64_t m : {1, 5, 20})
        for (const std::int64_t n : {32, 51})
          for (const bool has_scale : {false, true})
            for (const bool is_blocked : {false, true}) {
              Gemm g{m, n, k, {true, has_scale, true}, {Activation::kSwish, 1.0f, 0.0f, n == 51}};
              g.tiling = {2, 4, 2, depth};
              g.c.is_blocked = g.residual.is_blocked = is_blocked;
              check(target, g);
            }
  check(target, {90, 40, 3000, {true, false, true}, {Activation::kClip, -1.0f, 1.0f}});  // K is cut by the step
}

void weights_of_16_bits(const Target& target) {
  for (const ElementCode element : {ElementCode::kBF16, ElementCode::kF16})
    for (const bool transposed : {false, true})
      for (const std::int64_t n : {5, 16, 40, 51, 100})
        for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17})
          for (const std::int64_t k : {1, 16, 37}) {
            Gemm g{m, n, k, {true, n == 40, n != 40}};
            g.element = element;
            g.transposed = transposed;
            check(target, g);
            g.tiling = {2, 3, 2, 0};
            g.batch = {2};
            g.a.is_blocked = m == 17;
            check(target, g);
            if (n == 40 || m == 17) continue;
            g.tiling[3] = 16;
            check(target, g);
          }
  Gemm g{20, 51, 3000, {true, false, true}};  // in parts, which the step chooses
  g.element = ElementCode::kF16;
  check(target, g);
}

void workers(const Target& target) {
  for (int count = 1; count <= 6; ++count)
    for (const std::int64_t block : {0, 1, 2}) {
      // Large enough to use that many workers.
      Gemm g{40, 128, 64};
      g.batch = {3};
      g.tiling = {1, 5, block};
      check(target, g, count);
    }
}

void empty_and_activated(const Target& target) {
  for (const bool is_packed : {false, true}) {
    for (Gemm g : {Gemm{4, 4, 4}, Gemm{0, 4, 4}, Gemm{4, 0, 4}, Gemm{4, 20, 0}, Gemm{1, 20, 0}}) {
      g.operands.has_bias = true;
      g.is_packed = is_packed;
      check(target, g);
      g.batch = {2, 0};
      check(target, g);
    }
    for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
      for (const bool after : {false, true})
        for (const std::int64_t m : {1, 9}) {
          Gemm g{m, 37, 12, {true, false, true}, {static_cast<Activation>(i), 0.4f, 0.6f, after}};
          g.is_packed = is_packed;
          check(target, g);
        }
  }
}

void not_finite(const Target& target) {
  std::vector<float> a = random_floats(20 * 33, 6);
  a[40] = kNan;
  a[200] = std::numeric_limits<float>::infinity();
  for (const std::int64_t n : {3, 40}) {
    check(target, {20, n, 33, {true, false, false}, {Activation::kClip, 0.0f, 1.0f, false}}, 3, &a);
    check(target, {20, n, 33}, 3, &a);
  }
}

void refused(const Target& target) {
  const AttributeMap good{{"m", std::int64_t{4}}, {"n", std::int64_t{4}}, {"k", std::int64_t{4}}, {"batch", Ints{2}}};
  const std::vector<std::size_t> inputs{128, 256}, outputs{128};
  const auto refuse = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    AttributeMap changed = good;
    changed[name] = value;
    expect_refused(target, gemm_operations, "gemm_f32", changed, inputs, outputs, message);
  };
  refuse("m", std::int64_t{-1}, "\"m\" is -1");
  refuse("m", std::int64_t{5}, "bytes");
  refuse("k", std::int64_t{1} << 30, "bytes");
  refuse("n", std::int64_t{1} << 30, "bytes");
  refuse("batch", Ints{2, -1}, "value -1");
  refuse("batch", Ints(7, 1), "7 dimensions");
  refuse("batch", Ints{1 << 30, 1 << 30, 1 << 30}, "overflow");
  refuse("a_batch", Ints{1, 2}, "2 values; expected 1");
  refuse("a_batch", Ints{-4}, "value -4");
  refuse("a_batch", Ints{1 << 20}, "input 0");
  refuse("c_batch", Ints{0}, "overlap");
  refuse("c_row", std::int64_t{3}, "overlap");
  refuse("c_batch", Ints{8}, "overlap");
  refuse("b_batch", Ints{1 << 20}, "input 1");
  refuse("vectors", std::int64_t{9}, "vectors");
  refuse("b_element", std::string("i8"), "expected \"f32\", \"bf16\" or \"f16\"");
  AttributeMap changed{
      {"m", std::int64_t{4}}, {"n", std::int64_t{4}}, {"k", std::int64_t{512}}, {"b_element", std::string("f16")}};
  expect_refused(target, gemm_operations, "gemm_f32", changed, {8192, 4096}, {64}, "for a B of this shape");
  changed = {{"m", std::int64_t{4}},        {"n", std::int64_t{4}},       {"k", std::int64_t{4}},
             {"a_layout", std::int64_t{1}}, {"vectors", std::int64_t{1}}, {"depth", std::int64_t{16}}};
  expect_refused(target, gemm_operations, "gemm_f32", changed, {256, 256}, {64}, "expected rows");
  changed["a_layout"] = std::int64_t{0};
  changed["depth"] = std::int64_t{17};
  expect_refused(target, gemm_operations, "gemm_f32", changed, {64, 256}, {64}, "\"depth\" is 17");
  refuse("misspelt", std::int64_t{1}, "misspelt");
}

}  // namespace

int main() {
  return run_cases({{"tails", tails},
                    {"unpacked", unpacked},
                    {"wide", wide},
                    {"layouts", layouts},
                    {"batches", batches},
                    {"interleaved", interleaved},
                    {"columns", columns},
                    {"single column", single_column},
                    {"long rows", long_rows},
                    {"every tile", every_tile},
                    {"parts of depth", parts_of_depth},
                    {"weights of 16 bits", weights_of_16_bits},
                    {"workers", workers},
                    {"empty and activated", empty_and_activated},
                    {"not finite", not_finite},
                    {"refused", refused}});
}
