// LayerNormalization and RMSNormalization against the formula in double: tails, operands, phases, and cancellation.
#include <cmath>
#include <limits>

#include "kernels/row_norm.hpp"
#include "kernels_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Expected {
  std::vector<float> y, sum, mean, inv_std;
};

Expected reference_norm(const RowNormArgs& args, bool centered, const std::vector<float>& x,
                        const std::vector<float>& residual, const std::vector<float>& scale,
                        const std::vector<float>& bias) {
  Expected e;
  for (std::int64_t r = 0; r < args.rows; ++r) {
    double total = 0, squares = 0;
    std::vector<double> v;
    for (std::int64_t c = 0; c < args.columns; ++c) {
      const std::int64_t at = r * args.columns + c;
      e.sum.push_back(args.has_residual ? x[at] + residual[at] : x[at]);
      v.push_back(e.sum.back());
      total += v.back();
    }
    const double mean = centered ? total / args.columns : 0;
    for (const double value : v) squares += (value - mean) * (value - mean);
    const double factor = 1 / (std::sqrt(squares / args.columns + args.epsilon) + args.deviation_epsilon);
    e.mean.push_back(static_cast<float>(mean));
    e.inv_std.push_back(static_cast<float>(factor));
    for (std::int64_t c = 0; c < args.columns; ++c)
      e.y.push_back(
          static_cast<float>((v[c] - mean) * factor * (args.has_scale ? scale[c] : 1) + (args.has_bias ? bias[c] : 0)));
  }
  return e;
}

enum class Place { kApart, kInX, kInResidual };

void check(const Target& target, RowNormArgs args, const std::vector<float>& x, bool in_phases = false,
           Place place = Place::kApart, double tolerance = 0) {
  const auto residual = random_floats(x.size(), 2), scale = random_floats(args.columns, 3),
             bias = random_floats(args.columns, 4);
  args.chunks = in_phases ? (args.columns + kRowNormChunk - 1) / kRowNormChunk : 0;
  for (const bool centered : {true, false}) {
    const Expected expected = reference_norm(args, centered, x, residual, scale, bias);
    const std::string name = centered ? "layer_norm" : "rms_norm";
    const std::string what = name + " " + std::to_string(args.rows) + "x" + std::to_string(args.columns);
    if (tolerance == 0) tolerance = sum_tolerance(args.columns);
    Guarded gx(x), gr(residual), gs(scale), gb(bias), gy(x.size(), kNan), gsum(x.size(), kNan), gmean(args.rows, kNan),
        ginv(args.rows, kNan), parts(args.rows * args.chunks * 2, kNan);
    Guarded& y = place == Place::kInX ? gx : gy;
    Guarded& sum = place == Place::kInResidual ? gr : gsum;
    std::vector<void*> buffers = {gx.data()};
    if (args.has_residual) buffers.push_back(gr.data());
    if (args.has_scale) buffers.push_back(gs.data());
    if (args.has_bias) buffers.push_back(gb.data());
    buffers.push_back(y.data());
    if (args.stores_sum) buffers.push_back(sum.data());
    if (args.stores_mean) buffers.push_back(gmean.data());
    if (args.stores_inv_std) buffers.push_back(ginv.data());
    buffers.push_back(parts.data());
    if (in_phases) {
      run(target.find(name + "_parts_f32"), &args, buffers, 3, 0);
      run(target.find(name + "_apply_f32"), &args, buffers, 3, 0);
    } else {
      run(target.find(name + "_f32"), &args, buffers, 3, 0);
    }
    for (const Guarded* g : {&gx, &gr, &gs, &gb, &gy, &gsum, &gmean, &ginv, &parts})
      expect(g->intact(), what + ": overrun");
    expect_close(expected.y, y.values(), tolerance, what);
    if (args.stores_sum) expect_close(expected.sum, sum.values(), 0, what + " sum");
    if (args.stores_mean) expect_close(expected.mean, gmean.values(), tolerance, what + " mean");
    if (args.stores_inv_std) expect_close(expected.inv_std, ginv.values(), tolerance, what + " inv_std");
  }
}

RowNormArgs sized(std::int64_t rows, std::int64_t columns) {
  RowNormArgs args = {};
  args.rows = rows;
  args.columns = columns;
  args.epsilon = 1e-5f;
  return args;
}

void tails(const Target& target) {
  for (std::int64_t columns = 1; columns <= 70; ++columns)
    for (const bool has_residual : {false, true}) {
      RowNormArgs args = sized(4, columns);
      args.has_scale = args.has_bias = true;
      args.has_residual = has_residual;
      // A row of one element differs from its mean by zero or a rounding error, which division by the deviation
      // magnifies.
      args.epsilon = columns == 1 ? 1.0f : 1e-5f;
      check(target, args, random_floats(4 * columns, 1));
    }
  check(target, sized(3, 768), random_floats(3 * 768, 5));
  check(target, sized(0, 16), {});
  check(target, sized(3, 0), {});
}

void operands(const Target& target) {
  for (int flags = 0; flags < 64; ++flags) {
    RowNormArgs args = sized(5, 37);
    args.has_residual = flags & 1;
    args.has_scale = flags & 2;
    args.has_bias = flags & 4;
    args.stores_sum = args.has_residual && flags & 8;
    args.stores_mean = flags & 16;
    args.stores_inv_std = flags & 32;
    for (const Place place : {Place::kApart, Place::kInX, Place::kInResidual})
      check(target, args, random_floats(5 * 37, 6), false, place);
  }
  RowNormArgs args = sized(2, 33);
  args.epsilon = 0.0f;
  args.deviation_epsilon = 0.25f;
  check(target, args, random_floats(66, 7));
}

void phases(const Target& target) {
  for (const std::int64_t columns : {kRowNormChunk - 1, kRowNormChunk, 2 * kRowNormChunk + 4097})
    for (const bool has_residual : {false, true}) {
      RowNormArgs args = sized(2, columns);
      args.has_residual = args.stores_sum = has_residual;
      args.has_scale = args.stores_mean = args.stores_inv_std = true;
      check(target, args, random_floats(2 * columns, 8), true);
      args.stores_sum = false;
      args.has_bias = true;
      check(target, args, random_floats(2 * columns, 9), true, Place::kInX);
    }
}

void large_mean(const Target& target) {
  // Inputs around 4096 have spacing 2^-11; sums lose as much, relative to a deviation of 1/2.
  for (const std::int64_t columns : {100, 40000}) {
    auto x = random_floats(2 * columns, 10);
    for (float& value : x) value = std::round((value + 4096.0f) * 2048.0f) / 2048.0f;
    check(target, sized(2, columns), x, columns > kRowNormChunk, Place::kApart, 4096 * sum_tolerance(16));
  }
}

void not_finite(const Target& target) {
  for (const std::int64_t columns : {5, 19, 64})
    for (const float value : {kNan, kInf, -kInf}) {
      auto x = random_floats(3 * columns, 11);
      x[columns + 4] = value;
      check(target, sized(3, columns), x);
    }
}

}  // namespace

int main() {
  return run_cases({{"tails", tails},
                    {"operands", operands},
                    {"phases", phases},
                    {"large mean", large_mean},
                    {"not finite", not_finite}});
}
