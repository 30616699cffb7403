// Matrix products against the scalar one: every tail, both layouts, batches, epilogues, on every instruction set.
#include <cmath>
#include <limits>

#include "kernels/gemm.hpp"
#include "kernels/reference.hpp"
#include "kernels_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Gemm {
  GemmShape shape;
  GemmOperands operands;
  EpilogueArgs epilogue;
  GemmTiling tiling;
  bool transposed = false;
  bool is_b_shared = true;
  MatrixLayout a = MatrixLayout::kRows, c = MatrixLayout::kRows, residual = MatrixLayout::kRows;
  std::int64_t gap = 0;  // floats between the rows of row-major A and C
};

// One matrix of a batch in a layout; what is no element is NaN.
std::vector<float> lay_out(const std::vector<float>& plain, MatrixLayout layout, std::int64_t batch, std::int64_t rows,
                           std::int64_t columns, std::int64_t gap) {
  if (layout == MatrixLayout::kRows) {
    std::vector<float> result(batch * rows * (columns + gap), kNan);
    for (std::int64_t r = 0; r < batch * rows; ++r)
      for (std::int64_t i = 0; i < columns; ++i) result[r * (columns + gap) + i] = plain[r * columns + i];
    return result;
  }
  std::vector<float> result(batch * ((columns + 15) / 16) * rows * 16, kNan);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < columns; ++i)
        result[((b * ((columns + 15) / 16) + i / 16) * rows + r) * 16 + i % 16] = plain[(b * rows + r) * columns + i];
  return result;
}

std::vector<float> read_back(const std::vector<float>& stored, MatrixLayout layout, std::int64_t batch,
                             std::int64_t rows, std::int64_t columns, std::int64_t gap) {
  std::vector<float> plain(batch * rows * columns);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < columns; ++i)
        plain[(b * rows + r) * columns + i] =
            layout == MatrixLayout::kRows ? stored[(b * rows + r) * (columns + gap) + i]
                                          : stored[((b * ((columns + 15) / 16) + i / 16) * rows + r) * 16 + i % 16];
  return plain;
}

MatrixView view(MatrixLayout layout, std::int64_t rows, std::int64_t columns, std::int64_t gap) {
  if (layout == MatrixLayout::kRows) return {layout, columns + gap, rows * (columns + gap)};
  return {layout, rows * 16, (columns + 15) / 16 * rows * 16};
}

void check(const Target& target, const Gemm& g, int workers = 3, const std::vector<float>* given_a = nullptr) {
  const auto [batch, m, n, k] = g.shape;
  const std::string what = "b" + std::to_string(batch) + " m" + std::to_string(m) + " n" + std::to_string(n) + " k" +
                           std::to_string(k) + " v" + std::to_string(g.tiling.vectors) + " px" +
                           std::to_string(g.tiling.pixels);
  const std::int64_t b_count = g.is_b_shared ? 1 : batch;
  const auto a = given_a ? *given_a : random_floats(batch * m * k, 1);
  const auto b = random_floats(b_count * k * n, 2);
  auto bias = random_floats(n, 3), scale = random_floats(n, 4);
  const auto residual = random_floats(batch * m * n, 5);
  std::vector<float> expected(batch * m * n);
  for (std::int64_t i = 0; i < batch; ++i)
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        const float* matrix = b.data() + (g.is_b_shared ? 0 : i * k * n);
        for (std::int64_t d = 0; d < k; ++d)
          sum += double{a[(i * m + r) * k + d]} * (g.transposed ? matrix[j * k + d] : matrix[d * n + j]);
        const std::int64_t at = (i * m + r) * n + j;
        expected[at] = static_cast<float>(reference::finish(g.epilogue, sum, g.operands.has_scale ? &scale[j] : nullptr,
                                                            g.operands.has_bias ? &bias[j] : nullptr,
                                                            g.operands.has_residual ? &residual[at] : nullptr));
      }

  const KernelEntry& kernel = target.find("gemm_f32");
  const GemmArgs args = make_gemm_args(g.shape, g.operands, g.epilogue, g.tiling, g.transposed, g.transposed ? k : n,
                                       view(g.a, m, k, g.gap), view(g.residual, m, n, 0), view(g.c, m, n, g.gap),
                                       g.is_b_shared, *static_cast<const TileTraits*>(kernel.traits));
  const std::int64_t packed_floats = pack_group_floats(args.pack);
  Guarded packed(b_count * packed_floats, kNan), source(b);
  for (std::int64_t i = 0; i < b_count; ++i)
    run(target.find("pack_tiles_f32"), &args.pack, {source.data() + i * k * n, packed.data() + i * packed_floats}, 2,
        0);
  Guarded input(lay_out(a, g.a, batch, m, k, g.gap)), added(lay_out(residual, g.residual, batch, m, n, 0));
  bias.resize((n + 15) / 16 * 16, kNan);
  scale.resize((n + 15) / 16 * 16, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale);
  const std::vector<float> untouched = lay_out(std::vector<float>(batch * m * n, 9.0f), g.c, batch, m, n, g.gap);
  Guarded output(untouched);
  std::vector<void*> buffers{input.data(), packed.data()};
  if (g.operands.has_bias) buffers.push_back(bias_buffer.data());
  if (g.operands.has_scale) buffers.push_back(scale_buffer.data());
  if (g.operands.has_residual) buffers.push_back(added.data());
  buffers.push_back(output.data());
  run(kernel, &args, buffers, workers, gemm_scratch_bytes(args));
  expect(packed.intact() && output.intact(), what + ": overrun");
  const auto stored = output.values();
  expect_close(expected, read_back(stored, g.c, batch, m, n, g.gap), sum_tolerance(k), what);
  if (g.c == MatrixLayout::kRows)
    for (std::size_t i = 0; i < stored.size(); ++i)
      if (std::isnan(untouched[i]) && !std::isnan(stored[i])) expect(false, what + ": wrote between rows");
}

void tails(const Target& target) {
  for (const std::int64_t m : {1, 2, 5, 14, 15, 29})
    for (std::int64_t n = 1; n <= 70; n += n < 34 ? 1 : 7)
      for (const std::int64_t k : {1, 15, 16, 33}) check(target, {{1, m, n, k}, {true, false, n % 2 == 0}, {}, {}});
}

void layouts(const Target& target) {
  for (const MatrixLayout a : {MatrixLayout::kRows, MatrixLayout::kBlocked})
    for (const MatrixLayout c : {MatrixLayout::kRows, MatrixLayout::kBlocked})
      for (const MatrixLayout residual : {MatrixLayout::kRows, MatrixLayout::kBlocked})
        for (const std::int64_t n : {16, 40, 51})
          for (const bool transposed : {false, true})
            for (const bool shared : {false, true})
              check(target, {{3, 17, n, 37}, {true, true, true}, {}, {}, transposed, shared, a, c, residual, 5});
}

void every_tile(const Target& target) {
  const TileTraits& traits = target.traits<TileTraits>("gemm_f32");
  for (int vectors = 1; vectors <= traits.max_vectors; ++vectors)
    for (int pixels = 1; pixels <= traits.max_pixels[vectors]; ++pixels)
      for (const MatrixLayout a : {MatrixLayout::kRows, MatrixLayout::kBlocked})
        check(target, {{2, 31, 90, 21}, {true, false, true}, {}, {vectors, pixels, pixels % 4, 2}, false, true, a});
}

void workers(const Target& target) {
  for (int count = 1; count <= 6; ++count)
    for (const int split : {1, 3, 100}) check(target, {{3, 20, 64, 16}, {}, {}, {1, 5, 2, split}}, count);
}

void empty_and_activated(const Target& target) {
  for (const GemmShape& shape :
       {GemmShape{0, 4, 4, 4}, GemmShape{1, 0, 4, 4}, GemmShape{1, 4, 0, 4}, GemmShape{1, 4, 20, 0}})
    check(target, {shape, {true, false, false}, {}, {}});
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true})
      check(target, {{1, 9, 37, 12}, {true, false, true}, {static_cast<Activation>(i), 0.4f, 0.6f, after}, {}});
}

void not_finite(const Target& target) {
  std::vector<float> a = random_floats(20 * 33, 6);
  a[40] = kNan;
  a[200] = std::numeric_limits<float>::infinity();
  check(target, {{1, 20, 40, 33}, {true, false, false}, {Activation::kClip, 0.0f, 1.0f, false}, {}}, 3, &a);
  check(target, {{1, 20, 40, 33}, {}, {}, {}}, 3, &a);
}

}  // namespace

int main() {
  return run_cases({{"tails", tails},
                    {"layouts", layouts},
                    {"every tile", every_tile},
                    {"workers", workers},
                    {"empty and activated", empty_and_activated},
                    {"not finite", not_finite}});
}
