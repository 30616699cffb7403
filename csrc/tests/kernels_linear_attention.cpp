// Linear attention against scalar loops in f64: all rules, groups of queries, tails of values, a past, no tokens.
#include <cmath>

#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry linear_attention_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

struct Sizes {
  std::int64_t batch, tokens, heads, group, keys, values, decays, betas;
  bool has_past;
};

AttributeMap attributes(const Sizes& s) {
  return {{"batch", s.batch}, {"tokens", s.tokens},
          {"heads", s.heads}, {"group", s.group},
          {"keys", s.keys},   {"values", s.values},
          {"scale", 0.5},     {"decays", s.decays},
          {"betas", s.betas}, {"past", std::int64_t{s.has_past}}};
}

std::vector<float> some(std::int64_t count, std::uint32_t seed) {
  return random_floats(static_cast<std::size_t>(count), seed);
}

void check(const Target& target, const Sizes& s) {
  const std::int64_t rows = s.batch * s.tokens, states = s.batch * s.heads * s.keys * s.values;
  const auto query = some(rows * s.heads * s.group * s.keys, 1), key = some(rows * s.heads * s.keys, 2),
             value = some(rows * s.heads * s.values, 3), past = some(s.has_past ? states : 0, 4),
             beta = some(rows * s.betas, 6);
  auto decay = some(rows * s.heads * s.decays, 5);
  for (float& each : decay) each = -std::fabs(each);  // states shrink
  std::vector<double> state(static_cast<std::size_t>(states), 0.0);
  std::vector<float> output(static_cast<std::size_t>(rows * s.heads * s.group * s.values));
  if (s.has_past) state.assign(past.begin(), past.end());
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t t = 0; t < s.tokens; ++t)
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const std::int64_t token = b * s.tokens + t, head = token * s.heads + h;
        double* const own = state.data() + (b * s.heads + h) * s.keys * s.values;
        for (std::int64_t c = 0; c < s.values; ++c) {
          double held = 0;
          for (std::int64_t i = 0; i < s.keys; ++i) {
            double& each = own[i * s.values + c];
            if (s.decays > 0) each *= std::exp(static_cast<double>(decay[head * s.decays + (s.decays > 1 ? i : 0)]));
            held += each * key[head * s.keys + i];
          }
          double added = value[head * s.values + c];
          if (s.betas > 0) added = beta[token * s.betas + (s.betas > 1 ? h : 0)] * (added - held);
          for (std::int64_t i = 0; i < s.keys; ++i) own[i * s.values + c] += key[head * s.keys + i] * added;
          for (std::int64_t g = 0; g < s.group; ++g) {
            double sum = 0;
            for (std::int64_t i = 0; i < s.keys; ++i)
              sum += query[(head * s.group + g) * s.keys + i] * own[i * s.values + c];
            output[(head * s.group + g) * s.values + c] = static_cast<float>(0.5 * sum);
          }
        }
      }
  std::vector<ByteVector> inputs = {bytes_of_values(query), bytes_of_values(key), bytes_of_values(value)};
  if (s.has_past) inputs.push_back(bytes_of_values(past));
  if (s.decays > 0) inputs.push_back(bytes_of_values(decay));
  if (s.betas > 0) inputs.push_back(bytes_of_values(beta));
  std::vector<ByteVector> results = {ByteVector(output.size() * 4), ByteVector(state.size() * 4)};
  run_bytes(target, linear_attention_operations, "linear_attention_f32", attributes(s), inputs, results, 4);
  const std::vector<float> present(state.begin(), state.end());
  const double tolerance = sum_tolerance(s.keys * (s.tokens + 1));
  expect_close(output, values_of_bytes<float>(results[0]), tolerance, "output");
  expect_close(present, values_of_bytes<float>(results[1]), tolerance, "present");
}

void all(const Target& target) {
  for (const std::int64_t values : {1, 7, 16, 32, 45})
    for (const bool has_past : {false, true}) {
      check(target, {2, 3, 2, 1, 5, values, 0, 0, has_past});
      check(target, {1, 3, 2, 3, 5, values, 1, 0, has_past});
      check(target, {2, 2, 3, 1, 4, values, 4, 0, has_past});
      check(target, {1, 3, 2, 2, 5, values, 0, 2, has_past});
      check(target, {2, 3, 2, 1, 5, values, 5, 1, has_past});
      check(target, {2, 1, 2, 1, 5, values, 0, 0, has_past});  // a single token
      check(target, {1, 1, 2, 1, 5, values, 5, 2, has_past});
      check(target, {1, 1, 2, 3, 5, values, 1, 1, has_past});
    }
  check(target, {1, 0, 2, 1, 3, 4, 0, 0, true});
  check(target, {0, 2, 2, 1, 3, 4, 0, 0, false});
}

void refused(const Target& target) {
  const Sizes s = {1, 2, 3, 1, 4, 5, 4, 3, false};
  const std::vector<std::size_t> inputs = {96, 96, 120, 96, 24}, outputs = {120, 240};
  const auto refuse = [&](const Sizes& sizes, std::vector<std::size_t> in, std::vector<std::size_t> out,
                          const char* message) {
    expect_refused(target, linear_attention_operations, "linear_attention_f32", attributes(sizes), in, out, message);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    auto less = inputs;
    --less[i];
    refuse(s, less, outputs, "bytes");
  }
  refuse(s, inputs, {119, 240}, "bytes");
  refuse(s, inputs, {120, 239}, "bytes");
  Sizes wrong = s;
  wrong.decays = 3;
  refuse(wrong, inputs, outputs, "decays");
  wrong = s;
  wrong.betas = 2;
  refuse(wrong, inputs, outputs, "betas");
  wrong = s;
  wrong.has_past = true;
  refuse(wrong, inputs, outputs, "5 inputs; expected 6");
}

}  // namespace

int main() {
  return run_cases({{"all", all}, {"refused", refused}});
}
