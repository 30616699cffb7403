// Elementwise programs against a loop over elements: broadcasts, chains, in place, and steps that prepare refuses.
#include <limits>

#include "kernels_elementwise_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

// A sequence of instructions: opcode; type, sources.
Integers program(const std::vector<std::pair<Opcode, Integers>>& instructions) {
  Integers fields;
  for (const auto& [opcode, rest] : instructions) {
    fields.push_back(code(opcode));
    fields.insert(fields.end(), rest.begin(), rest.end());
  }
  return fields;
}

constexpr float kInf = std::numeric_limits<float>::infinity();

// a * b + c over a space, each operand with its own strides, against nested loops.
template <class T>
void check_broadcast(const Target& target, ElementCode type, const Integers& dims,
                     const std::vector<Integers>& strides) {
  const std::size_t rank = dims.size();
  std::int64_t count = 1;
  for (const std::int64_t d : dims) count *= d;
  std::vector<std::vector<T>> values;
  std::vector<GuardedBytes> storage;
  std::vector<std::size_t> bytes;
  Step step;
  step.dims = dims;
  for (std::size_t s = 0; s < 3; ++s) {
    std::int64_t extent = 1;
    for (std::size_t d = 0; d < rank; ++d) extent += (dims[d] - 1) * strides[s][d];
    const auto raw =
        random_floats(static_cast<std::size_t>(count == 0 ? 0 : extent), static_cast<std::uint32_t>(s) + 5);
    values.emplace_back();
    for (const float v : raw) values.back().push_back(static_cast<T>(v * 100));
    storage.emplace_back(values.back());
    bytes.push_back(raw.size() * sizeof(T));
    step.input_types.push_back(code(type));
    step.input_strides.insert(step.input_strides.end(), strides[s].begin(), strides[s].end());
  }
  step.program = {code(Opcode::kMul), code(type), 0, 1, -1, code(Opcode::kAdd), code(type), 3, 2, -1};
  step.outputs = {4};
  std::vector<T> expected;
  Integers index(rank, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t at[3] = {};
    for (std::size_t s = 0; s < 3; ++s)
      for (std::size_t d = 0; d < rank; ++d) at[s] += index[d] * strides[s][d];
    expected.push_back(static_cast<T>(
        static_cast<T>(values[0][static_cast<std::size_t>(at[0])] * values[1][static_cast<std::size_t>(at[1])]) +
        values[2][static_cast<std::size_t>(at[2])]));
    for (std::size_t d = rank; d-- > 0;) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
  std::string what = "broadcast";
  for (const std::int64_t d : dims) what += " " + std::to_string(d);
  for (const int workers : {1, 2, 5}) {
    GuardedBytes y(static_cast<std::size_t>(count) * sizeof(T), sizeof(T));
    run_step(target, step, {&storage[0], &storage[1], &storage[2]}, bytes, {&y},
             {static_cast<std::size_t>(count) * sizeof(T)}, workers, what);
    expect(y.values<T>() == expected, what + " of type " + std::to_string(code(type)));
  }
}

void broadcasts(const Target& target) {
  const struct {
    Integers dims;
    std::vector<Integers> others;  // strides of the second and third operand
  } cases[] = {
      {{5000}, {{1}, {0}}},
      {{}, {{}, {}}},
      {{0, 3}, {{3, 1}, {0, 1}}},
      {{4, 0}, {{0, 1}, {1, 0}}},
      {{7, 300}, {{0, 1}, {1, 0}}},            // a row vector, and a column vector
      {{130, 17}, {{0, 1}, {1, 0}}},           // short rows
      {{2, 20, 49}, {{0, 1, 0}, {20, 1, 0}}},  // a value for each channel, and for each channel of each image
      {{2, 3, 3136}, {{0, 1, 0}, {3, 1, 0}}},
      {{2, 3, 100, 16}, {{0, 16, 0, 1}, {100, 0, 1, 0}}},     // blocked maps: a value for each channel; for each pixel
      {{2, 3, 100, 16}, {{48, 16, 0, 1}, {1600, 0, 16, 0}}},  // for each image; lane 0 of a blocked map of one channel
      {{3, 5, 1, 16}, {{0, 16, 16, 1}, {16, 0, 0, 1}}},
      {{12, 1, 9, 11}, {{0, 99, 11, 1}, {9, 0, 1, 0}}},  // an attention mask
      {{2, 3, 2, 3, 2, 3, 2, 3}, {{0, 12, 4, 0, 0, 1, 0, 0}, {1, 0, 2, 0, 4, 0, 8, 0}}},
      {{6, 40}, {{1, 6}, {2, 12}}},  // transposed, and every second element
      {{1, 257, 1}, {{9, 1, 5}, {0, 0, 0}}},
      {{3, 2000}, {{0, 0}, {4000, 2}}},
  };
  for (const auto& [dims, others] : cases) {
    const std::vector<Integers> strides = {dense(dims), others[0], others[1]};
    check_broadcast<std::int64_t>(target, ElementCode::kI64, dims, strides);
    check_broadcast<std::uint8_t>(target, ElementCode::kU8, dims, strides);
    // Sums of integers are exact in f32, so f32 must give the same results.
    check_broadcast<std::int32_t>(target, ElementCode::kI32, dims, strides);
  }
}

// y = max(x * w + b, 0) with every intermediate value kept; y in the memory of x.
void chains(const Target& target) {
  for (const std::int64_t count : {1, 16, 250, 4099})
    for (const bool in_place : {false, true}) {
      const std::size_t size = static_cast<std::size_t>(count);
      const auto x = random_floats(size, 1), w = random_floats(size, 2), b = random_floats(1, 3);
      std::vector<float> product(size), sum(size), y(size);
      std::vector<std::uint8_t> is_less(size);
      for (std::size_t i = 0; i < size; ++i) {
        product[i] = x[i] * w[i];
        sum[i] = product[i] + b[0];
        y[i] = (sum[i] < 0 ? 0 : sum[i]) - x[i];
        is_less[i] = sum[i] < w[i];
      }
      Step step;
      step.dims = {count};
      step.input_types = {kF32, kF32, kF32};
      step.input_strides = {1, 1, 0};
      step.constants = {kF32, 0};
      // Values: x, w, b, zero; product, sum, Relu, y, is_less.
      step.program = program({{Opcode::kMul, {kF32, 0, 1, -1}},
                              {Opcode::kAdd, {kF32, 4, 2, -1}},
                              {Opcode::kMax, {kF32, 5, 3, -1}},
                              {Opcode::kSub, {kF32, 6, 0, -1}},
                              {Opcode::kLess, {kF32, 5, 1, -1}}});
      step.outputs = {7, 5, 8, 7, 4};
      GuardedBytes in_x(x), in_w(w), in_b(b), out_y(size * 4, 4), out_sum(size * 4, 4), out_less(size, 1),
          again(size * 4, 4), out_product(size * 4, 4);
      GuardedBytes& first = in_place ? in_x : out_y;
      run_step(target, step, {&in_x, &in_w, &in_b}, {size * 4, size * 4, 4},
               {&first, &out_sum, &out_less, &again, &out_product}, {size * 4, size * 4, size, size * 4, size * 4}, 2,
               "chain");
      const std::string what = "chain of " + std::to_string(count) + (in_place ? " in place" : "");
      expect_close(y, first.values<float>(), 3e-7, what);
      expect_close(y, again.values<float>(), 3e-7, what + ", second output");
      expect_close(sum, out_sum.values<float>(), 3e-7, what + ", sum");
      expect_close(product, out_product.values<float>(), 0, what + ", product");
      expect(is_less == out_less.values<std::uint8_t>(), what + ", comparison");
    }
}

// The computation of a mask: i64 to bool to f32, with registers of several widths alive at once.
void mixed_types(const Target& target) {
  constexpr std::size_t kCount = 3001;
  std::vector<std::int64_t> ids(kCount), limit = {500};
  const auto x = random_floats(kCount, 4);
  std::vector<float> expected;
  for (std::size_t i = 0; i < kCount; ++i) {
    ids[i] = static_cast<std::int64_t>(i * 7919 % 1000);
    expected.push_back(ids[i] < 500 ? x[i] : -kInf + (ids[i] % 2 ? 0 : 1));
  }
  Step step;
  step.dims = {kCount};
  step.input_types = {code(ElementCode::kI64), code(ElementCode::kI64), kF32};
  step.input_strides = {1, 0, 1};
  const float low = -kInf;
  std::int64_t bits = 0;
  std::memcpy(&bits, &low, sizeof low);
  step.constants = {kF32, bits, code(ElementCode::kI64), 2};
  // Values: ids, limit, x, -inf, 2; less, ids mod 2, as f32, -inf + it, where.
  const std::int64_t i64 = code(ElementCode::kI64);
  step.program = program({{Opcode::kLess, {i64, 0, 1, -1}},
                          {Opcode::kMod, {i64, 0, 4, -1}},
                          {Opcode::kCast, {i64, 6, kF32, -1}},
                          {Opcode::kAdd, {kF32, 3, 7, -1}},
                          {Opcode::kWhere, {kF32, 5, 2, 8}}});
  step.outputs = {9};
  GuardedBytes in_ids(ids), in_limit(limit), in_x(x), y(kCount * 4, 4);
  run_step(target, step, {&in_ids, &in_limit, &in_x}, {kCount * 8, 8, kCount * 4}, {&y}, {kCount * 4}, 2, "mask");
  expect_close(expected, y.values<float>(), 0, "mask");
}

void refuses(const Target& target) {
  const Step good = {{4, 8}, {kF32, kF32}, {8, 1, 0, 1}, {kF32, 0}, program({{Opcode::kAdd, {kF32, 0, 1, -1}}}), {3}};
  const auto refused = [&](const Step& step, const std::vector<std::size_t>& inputs, const std::string& what) {
    try {
      prepare(target, step, inputs, {128});
    } catch (const PlanError&) {
      return;
    }
    expect(false, what + " was taken");
  };
  prepare(target, good, {128, 32}, {128});
  const auto changed = [&](void (*change)(Step&), const std::string& what) {
    Step step = good;
    change(step);
    refused(step, {128, 32}, what);
  };
  refused(good, {124, 32}, "a short input");
  refused(good, {128, 28}, "a short broadcast input");
  refused(good, {128}, "a missing input");
  changed([](Step& s) { s.dims = {4, 9}; }, "a short output");
  changed([](Step& s) { s.dims = {-4, 8}; }, "a negative dimension");
  changed([](Step& s) { s.dims = {1ll << 40, 1ll << 40}; }, "an overflow");
  changed([](Step& s) { s.dims.assign(9, 1); }, "nine dimensions");
  changed([](Step& s) { s.input_strides[0] = -8; }, "a negative stride");
  changed([](Step& s) { s.input_strides[0] = INT64_MAX; }, "a stride that overflows");
  changed([](Step& s) { s.input_strides.pop_back(); }, "too few strides");
  changed([](Step& s) { s.input_types[0] = kElementCodes; }, "an unknown type");
  changed([](Step& s) { s.input_types[0] = -1; }, "a negative type");
  changed([](Step& s) { s.constants.pop_back(); }, "half a constant");
  changed([](Step& s) { s.program.pop_back(); }, "four fifths of an instruction");
  for (const std::int64_t opcode : {-1, kOpcodes, 1000}) {
    Step step = good;
    step.program[0] = opcode;
    refused(step, {128, 32}, "opcode " + std::to_string(opcode));
  }
  changed([](Step& s) { s.program[0] = code(Opcode::kAnd); }, "And of f32");
  changed([](Step& s) { s.program[1] = code(ElementCode::kF16); }, "sources of another type");
  changed([](Step& s) { s.program[2] = 3; }, "an instruction that reads itself");
  changed([](Step& s) { s.program[2] = INT64_MIN; }, "a source far below");
  changed([](Step& s) { s.program[3] = -1; }, "a missing source");
  changed([](Step& s) { s.program[4] = 0; }, "a source too many");
  changed([](Step& s) { s.program = program({{Opcode::kCast, {kF32, 0, kElementCodes, -1}}}); }, "a cast to no type");
  changed([](Step& s) { s.program = program({{Opcode::kCast, {kF32, 0, kF32, 0}}}); }, "a cast of two sources");
  changed([](Step& s) { s.outputs = {4}; }, "an output that is no value");
  changed([](Step& s) { s.outputs = {3, 3}; }, "an output too many");
  changed(
      [](Step& s) {
        for (int i = 0; i < 300; ++i) s.program.insert(s.program.end(), {code(Opcode::kNeg), kF32, 0, -1, -1});
      },
      "too many values");
}

}  // namespace

int main() {
  return run_cases(
      {{"broadcasts", broadcasts}, {"chains", chains}, {"mixed types", mixed_types}, {"refuses", refuses}});
}
