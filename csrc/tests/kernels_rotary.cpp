// Rotary embeddings against the scalar definition, on every instruction set.
#include "kernels_operation_common.hpp"

#include <limits>

namespace engine {
extern const OperationEntry rotary_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;

struct Problem {
  std::int64_t batch, heads, rows, size, rotated;
  bool interleaved, rows_first, shared_table;
};

void check(const Target& target, const Problem& p, int workers) {
  const auto x = random_floats(p.batch * p.heads * p.rows * p.size, 1);
  const std::int64_t half = p.rotated / 2, tables = p.shared_table ? 1 : p.batch;
  const auto cosine = random_floats(tables * p.rows * half, 2), sine = random_floats(tables * p.rows * half, 3);
  Ints strides{p.heads * p.rows * p.size, p.rows * p.size, p.size};
  if (p.rows_first) strides = {p.heads * p.rows * p.size, p.size, p.heads * p.size};
  std::vector<float> expected(x);
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t r = 0; r < p.rows; ++r)
        for (std::int64_t i = 0; i < half; ++i) {
          const std::int64_t row = b * strides[0] + h * strides[1] + r * strides[2];
          const std::int64_t first = row + (p.interleaved ? 2 * i : i);
          const std::int64_t second = row + (p.interleaved ? 2 * i + 1 : i + half);
          const std::int64_t place = ((p.shared_table ? 0 : b) * p.rows + r) * half + i;
          expected[first] = x[first] * cosine[place] - x[second] * sine[place];
          expected[second] = x[first] * sine[place] + x[second] * cosine[place];
        }
  Guarded input(x), c(cosine), s(sine), output(x.size(), std::numeric_limits<float>::quiet_NaN());
  const AttributeMap attributes{
      {"batch", p.batch}, {"heads", p.heads},     {"rows", p.rows},
      {"size", p.size},   {"rotated", p.rotated}, {"interleaved", std::int64_t{p.interleaved}},
      {"x", strides},     {"y", strides},         {"table", Ints{p.shared_table ? 0 : p.rows * half, half}}};
  run_operation(target, rotary_operations, "rotary_f32", attributes, {&input, &c, &s}, {&output}, workers);
  expect(output.intact(), "overrun");
  Guarded both(x);
  run_operation(target, rotary_operations, "rotary_f32", attributes, {&both, &c, &s}, {&both}, workers);
  expect_close(expected, both.values(), sum_tolerance(2), "in place");
  expect_close(expected, output.values(), sum_tolerance(2), "size " + std::to_string(p.size));
}

void all(const Target& target) {
  for (const std::int64_t size : {0, 1, 2, 6, 30, 32, 64, 66})
    for (const bool interleaved : {false, true})
      for (const bool rows_first : {false, true})
        for (const bool shared : {false, true})
          for (const std::int64_t kept : {0, 2, 5}) {
            const std::int64_t rotated = size < kept ? 0 : (size - kept) / 2 * 2;
            check(target, {2, 3, 7, size, rotated, interleaved, rows_first, shared}, 3);
          }
  check(target, {2, 8, 200, 64, 64, false, true, false}, 4);
  check(target, {0, 2, 3, 4, 4, false, false, false}, 2);
}

void refused(const Target& target) {
  const AttributeMap good{{"batch", std::int64_t{1}}, {"heads", std::int64_t{2}}, {"rows", std::int64_t{3}},
                          {"size", std::int64_t{4}},  {"x", Ints{24, 12, 4}},     {"y", Ints{24, 12, 4}},
                          {"table", Ints{0, 2}}};
  const std::vector<std::size_t> inputs{96, 24, 24}, outputs{96};
  prepare(target, rotary_operations, "rotary_f32", good, inputs, outputs);
  const auto refuse = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    AttributeMap changed = good;
    changed[name] = value;
    expect_refused(target, rotary_operations, "rotary_f32", changed, inputs, outputs, message);
  };
  refuse("batch", std::int64_t{-1}, "\"batch\" is -1");
  refuse("rows", std::int64_t{4}, "bytes");
  refuse("rotated", std::int64_t{3}, "even");
  refuse("rotated", std::int64_t{6}, "\"rotated\" is 6");
  refuse("y", Ints{24, 0, 4}, "overlap");
  refuse("x", Ints{24, 12}, "2 values");
  refuse("x", Ints{24, 12, -4}, "value -4");
  refuse("table", Ints{0, 1 << 20}, "input 1");
}

}  // namespace

int main() {
  return run_cases({{"all", all}, {"refused", refused}});
}
