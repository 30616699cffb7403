// Gather and scatter by indices against loops, including indices out of range.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/prepare/codes.hpp"
#include "kernels_bytes_common.hpp"
#include "simd/half.hpp"

namespace engine {
extern const OperationEntry gather_operations[];
extern const OperationEntry scatter_operations[];
extern const OperationEntry tensor_scatter_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;

std::int64_t product(const Ints& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t flat(const Ints& at, const Ints& shape) {
  std::int64_t i = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) i = i * shape[d] + at[d];
  return i;
}

template <class Call>
void for_each_index(const Ints& shape, Call call) {
  Ints at(shape.size(), 0);
  for (std::int64_t i = 0; i < product(shape); ++i) {
    std::int64_t rest = i;
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
    call(at, i);
  }
}

// Indices into a dimension of `size`, half of them negative.
Ints random_indices(std::int64_t count, std::int64_t size, std::uint32_t seed) {
  Dice dice(seed);
  Ints indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(dice.roll(2 * size) - size);
  return indices;
}

ByteVector index_bytes(const Ints& indices, std::int64_t bytes) {
  return bytes == 8 ? bytes_of_values(indices)
                    : bytes_of_values(std::vector<std::int32_t>(indices.begin(), indices.end()));
}

void append(ByteVector& to, const ByteVector& from, std::int64_t at, std::int64_t bytes) {
  to.insert(to.end(), from.begin() + at, from.begin() + at + bytes);
}

void gathers(const Target& target) {
  for (const std::int64_t element : {1, 2, 4, 8})
    for (const std::int64_t inner : {1, 3, 16, 100})
      for (const auto& [width, count] : {std::pair<int, int>{4, 11}, {8, 11}, {8, 1}}) {  // workers share or have rows
        const Ints indices = random_indices(count, 7, 1);
        const ByteVector data = random_bytes(static_cast<std::size_t>(3 * 7 * inner * element), 2);
        ByteVector expected;
        for (std::int64_t o = 0; o < 3; ++o)
          for (const std::int64_t index : indices)
            append(expected, data, (o * 7 + (index < 0 ? index + 7 : index)) * inner * element, inner * element);
        std::vector<ByteVector> actual = {ByteVector(expected.size())};
        const Fault fault = run_bytes(target, gather_operations, "gather",
                                      {{"element_bytes", element},
                                       {"index_bytes", width},
                                       {"outer", 3},
                                       {"axis", 7},
                                       {"inner", inner},
                                       {"count", count}},
                                      {data, index_bytes(indices, width)}, actual);
        expect(actual[0] == expected && !fault.found, "gather of blocks of " + std::to_string(inner * element));
      }
}

void gathers_of_elements(const Target& target) {
  const Ints shape = {4, 5, 6}, index_shape = {3, 5, 4};
  for (const std::int64_t axis : {0, 1, 2})
    for (const std::int64_t element : {1, 2, 4, 8}) {
      Ints wanted = index_shape;
      wanted[static_cast<std::size_t>(axis)] = 9;
      const Ints indices = random_indices(product(wanted), shape[static_cast<std::size_t>(axis)], 3);
      const ByteVector data = random_bytes(static_cast<std::size_t>(product(shape) * element), 4);
      ByteVector expected;
      for_each_index(wanted, [&](Ints at, std::int64_t i) {
        const auto along = static_cast<std::size_t>(axis);
        at[along] =
            indices[static_cast<std::size_t>(i)] + (indices[static_cast<std::size_t>(i)] < 0 ? shape[along] : 0);
        append(expected, data, flat(at, shape) * element, element);
      });
      std::vector<ByteVector> actual = {ByteVector(expected.size())};
      run_bytes(
          target, gather_operations, "gather_elements",
          {{"element_bytes", element}, {"index_bytes", 8}, {"data_shape", shape}, {"shape", wanted}, {"axis", axis}},
          {data, index_bytes(indices, 8)}, actual);
      expect(actual[0] == expected, "gather_elements on axis " + std::to_string(axis));
    }
}

void gathers_of_tuples(const Target& target) {
  const Ints shape = {2, 3, 4, 5};
  for (std::int64_t batch_dims = 0; batch_dims <= 2; ++batch_dims)
    for (std::int64_t depth = 0; depth <= 4 - batch_dims; ++depth) {
      const std::int64_t batch = product(Ints(shape.begin(), shape.begin() + batch_dims));
      Ints indices;
      for (std::int64_t i = 0; i < batch * 6; ++i)
        for (std::int64_t d = 0; d < depth; ++d)
          indices.push_back(random_indices(1, shape[static_cast<std::size_t>(batch_dims + d)],
                                           static_cast<std::uint32_t>(i * 5 + d))[0]);
      const ByteVector data = random_bytes(120 * 4, 5);
      const std::int64_t slice = product(Ints(shape.begin() + batch_dims + depth, shape.end()));
      ByteVector expected;
      for (std::int64_t i = 0; i < batch * 6; ++i) {
        std::int64_t at = i / 6;
        for (std::int64_t d = 0; d < depth; ++d) {
          const std::int64_t size = shape[static_cast<std::size_t>(batch_dims + d)];
          const std::int64_t index = indices[static_cast<std::size_t>(i * depth + d)];
          at = at * size + (index < 0 ? index + size : index);
        }
        append(expected, data, at * slice * 4, slice * 4);
      }
      std::vector<ByteVector> actual = {ByteVector(expected.size())};
      run_bytes(target, gather_operations, "gather_nd",
                {{"element_bytes", 4},
                 {"index_bytes", 8},
                 {"data_shape", shape},
                 {"batch_dims", batch_dims},
                 {"count", 6},
                 {"depth", depth}},
                {data, index_bytes(indices, 8)}, actual);
      expect(actual[0] == expected, "gather_nd of depth " + std::to_string(depth));
    }
}

void one_hots(const Target& target) {
  const Ints indices = {0, 3, -1, 4, -5, 2};  // two of them out of range, which is not a fault here
  for (const std::int64_t element : {1, 2, 4, 8})
    for (const std::int64_t inner : {1, 2, 6}) {
      const ByteVector values = random_bytes(static_cast<std::size_t>(2 * element), 6);
      ByteVector expected;
      for (std::int64_t o = 0; o < 6 / inner; ++o)
        for (std::int64_t d = 0; d < 4; ++d)
          for (std::int64_t i = 0; i < inner; ++i) {
            const std::int64_t index = indices[static_cast<std::size_t>(o * inner + i)];
            append(expected, values, index == d || index + 4 == d ? element : 0, element);
          }
      std::vector<ByteVector> actual = {ByteVector(expected.size())};
      const Fault fault = run_bytes(
          target, gather_operations, "one_hot",
          {{"element_bytes", element}, {"index_bytes", 4}, {"outer", 6 / inner}, {"depth", 4}, {"inner", inner}},
          {index_bytes(indices, 4), values}, actual);
      expect(actual[0] == expected && !fault.found, "one_hot");
    }
}

void out_of_range(const Target& target) {
  constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t bad :
       {std::int64_t{4}, std::int64_t{-5}, std::numeric_limits<std::int64_t>::max(), kMinInt64}) {
    const auto faulty = [&](const OperationEntry* operations, const std::string& name, const AttributeMap& attributes,
                            const std::vector<ByteVector>& inputs, std::size_t bytes) {
      std::vector<ByteVector> actual = {ByteVector(bytes)};
      const Fault fault = run_bytes(target, operations, name, attributes, inputs, actual);
      expect(fault.found && fault.index == bad && fault.size == 4, name + " does not tell of an index out of range");
    };
    const ByteVector data = random_bytes(16, 8), indices = index_bytes({1, bad, 0}, 8), updates = random_bytes(12, 9);
    faulty(gather_operations, "gather",
           {{"element_bytes", 4}, {"index_bytes", 8}, {"outer", 1}, {"axis", 4}, {"inner", 1}, {"count", 3}},
           {data, indices}, 12);
    faulty(gather_operations, "gather_elements",
           {{"element_bytes", 4}, {"index_bytes", 8}, {"data_shape", Ints{4}}, {"shape", Ints{3}}, {"axis", 0}},
           {data, indices}, 12);
    faulty(gather_operations, "gather_nd",
           {{"element_bytes", 4},
            {"index_bytes", 8},
            {"data_shape", Ints{4}},
            {"batch_dims", 0},
            {"count", 3},
            {"depth", 1}},
           {data, indices}, 12);
    faulty(
        scatter_operations, "scatter_elements",
        {{"type", "f32"}, {"op", "add"}, {"index_bytes", 8}, {"data_shape", Ints{4}}, {"shape", Ints{3}}, {"axis", 0}},
        {data, indices, updates}, 16);
    faulty(scatter_operations, "scatter_nd",
           {{"type", "f32"}, {"op", "add"}, {"index_bytes", 8}, {"data_shape", Ints{4}}, {"count", 3}, {"depth", 1}},
           {data, indices, updates}, 16);
  }
}

// `attributes` combined with `more`.
AttributeMap with(AttributeMap attributes, const AttributeMap& more) {
  attributes.insert(more.begin(), more.end());
  return attributes;
}

template <class T>
T combine(ScatterOp op, T a, T b) {
  if (op == ScatterOp::kAdd) return static_cast<T>(a + b);
  if (op == ScatterOp::kMultiply) return static_cast<T>(a * b);
  if (op == ScatterOp::kMinimum) return b < a || b != b ? b : a;
  if (op == ScatterOp::kMaximum) return b > a || b != b ? b : a;
  return b;
}

template <class T>
std::vector<T> small_values(std::int64_t count, std::uint32_t seed) {
  Dice dice(seed);
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(dice.roll(13) - 6));
  return values;
}

template <class T>
void scatter_elements_of(const Target& target, const AttributeMap& element, ScatterOp op) {
  const Ints shape = {4, 5, 6};
  for (const std::size_t axis : {0, 1, 2}) {
    Ints updated = {3, 4, 6};
    updated[axis] = 7;  // larger than the dimension, so some elements are updated twice
    const Ints indices = random_indices(product(updated), shape[axis], 10);
    std::vector<T> expected = small_values<T>(product(shape), 11);
    const std::vector<T> updates = small_values<T>(product(updated), 12);
    const ByteVector data = bytes_of_values(expected);
    for_each_index(updated, [&](Ints at, std::int64_t i) {
      at[axis] = indices[static_cast<std::size_t>(i)] + (indices[static_cast<std::size_t>(i)] < 0 ? shape[axis] : 0);
      T& value = expected[static_cast<std::size_t>(flat(at, shape))];
      value = combine(op, value, updates[static_cast<std::size_t>(i)]);
    });
    std::vector<ByteVector> actual = {ByteVector(data.size())};
    run_bytes(target, scatter_operations, "scatter_elements",
              with(element, {{"op", name_of(op)},
                             {"index_bytes", 8},
                             {"data_shape", shape},
                             {"shape", updated},
                             {"axis", static_cast<std::int64_t>(axis)}}),
              {data, index_bytes(indices, 8), bytes_of_values(updates)}, actual);
    expect(values_of_bytes<T>(actual[0]) == expected,
           "scatter_elements of " + std::to_string(sizeof(T)) + " bytes, operation " + name_of(op));
  }
}

template <class T>
void scatter_nd_of(const Target& target, const AttributeMap& element, ScatterOp op) {
  const Ints shape = {3, 4, 50};
  for (std::int64_t depth = 0; depth <= 3; ++depth) {
    const std::int64_t slice = product(Ints(shape.begin() + depth, shape.end()));
    Ints indices;
    for (std::int64_t i = 0; i < 9; ++i)
      for (std::int64_t d = 0; d < depth; ++d)
        indices.push_back(
            random_indices(1, shape[static_cast<std::size_t>(d)], static_cast<std::uint32_t>(i * 3 + d))[0]);
    std::vector<T> expected = small_values<T>(product(shape), 13);
    const std::vector<T> updates = small_values<T>(9 * slice, 14);
    const ByteVector data = bytes_of_values(expected);
    for (std::int64_t i = 0; i < 9; ++i) {
      std::int64_t at = 0;
      for (std::int64_t d = 0; d < depth; ++d) {
        const std::int64_t size = shape[static_cast<std::size_t>(d)];
        const std::int64_t index = indices[static_cast<std::size_t>(i * depth + d)];
        at = at * size + (index < 0 ? index + size : index);
      }
      for (std::int64_t e = 0; e < slice; ++e) {
        T& value = expected[static_cast<std::size_t>(at * slice + e)];
        value = combine(op, value, updates[static_cast<std::size_t>(i * slice + e)]);
      }
    }
    std::vector<ByteVector> actual = {ByteVector(data.size())};
    run_bytes(
        target, scatter_operations, "scatter_nd",
        with(element, {{"op", name_of(op)}, {"index_bytes", 4}, {"data_shape", shape}, {"count", 9}, {"depth", depth}}),
        {data, index_bytes(indices, 4), bytes_of_values(updates)}, actual);
    expect(values_of_bytes<T>(actual[0]) == expected,
           "scatter_nd of " + std::to_string(sizeof(T)) + " bytes, operation " + name_of(op));
  }
}

template <class T>
void check_scatters(const Target& target, const AttributeMap& element, ScatterOp op) {
  scatter_elements_of<T>(target, element, op);
  scatter_nd_of<T>(target, element, op);
}

template <class T>
void check_replacing(const Target& target) {
  check_scatters<T>(target, {{"element_bytes", std::int64_t{sizeof(T)}}}, ScatterOp::kNone);
}

template <class T>
void check_combining(const Target& target, const char* type) {
  for (const ScatterOp op : {ScatterOp::kAdd, ScatterOp::kMultiply, ScatterOp::kMinimum, ScatterOp::kMaximum})
    check_scatters<T>(target, {{"type", type}}, op);
}

void scatters(const Target& target) {
  check_replacing<std::int8_t>(target);
  check_replacing<std::int16_t>(target);
  check_replacing<std::int32_t>(target);
  check_replacing<std::int64_t>(target);
  check_combining<float>(target, "f32");
  check_combining<double>(target, "f64");
  check_combining<std::int32_t>(target, "i32");
  check_combining<std::int64_t>(target, "i64");
}

void not_a_number(const Target& target) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const char* op : {"min", "max"}) {
    std::vector<ByteVector> actual = {ByteVector(12)};
    run_bytes(
        target, scatter_operations, "scatter_elements",
        {{"type", "f32"}, {"op", op}, {"index_bytes", 8}, {"data_shape", Ints{3}}, {"shape", Ints{3}}, {"axis", 0}},
        {bytes_of_values<float>({1, kNan, 2}), index_bytes({0, 1, 2}, 8), bytes_of_values<float>({kNan, 1, 2})},
        actual);
    const auto values = values_of_bytes<float>(actual[0]);
    expect(std::isnan(values[0]) && std::isnan(values[1]) && values[2] == 2, "a NaN wins");
  }
}

void nothing(const Target& target) {
  std::vector<ByteVector> empty = {{}};
  run_bytes(target, gather_operations, "gather",
            {{"element_bytes", 4}, {"index_bytes", 8}, {"outer", 0}, {"axis", 3}, {"inner", 2}, {"count", 1}},
            {{}, index_bytes({9}, 8)}, empty);
  run_bytes(target, gather_operations, "gather",
            {{"element_bytes", 4}, {"index_bytes", 8}, {"outer", 2}, {"axis", 0}, {"inner", 2}, {"count", 0}}, {{}, {}},
            empty);
  run_bytes(target, gather_operations, "gather",
            {{"element_bytes", 4}, {"index_bytes", 8}, {"outer", 2}, {"axis", 3}, {"inner", 0}, {"count", 1}},
            {{}, index_bytes({2}, 8)}, empty);
  std::vector<ByteVector> kept = {ByteVector(12)};
  const ByteVector data = random_bytes(12, 1);
  run_bytes(target, scatter_operations, "scatter_elements",
            {{"element_bytes", 4},
             {"op", "none"},
             {"index_bytes", 8},
             {"data_shape", Ints{3}},
             {"shape", Ints{0}},
             {"axis", 0}},
            {data, {}, {}}, kept);
  expect(kept[0] == data, "no update");
}

// 2 samples of 3 parts of 5 rows, 2 of them written; dense, or with the rows of all parts side by side.
void steps_into_caches(const Target& target) {
  for (const std::int64_t row : {1, 4, 70})
    for (const bool is_dense : {true, false})
      for (const bool is_circular : {false, true})
        for (const Ints& first : {Ints{0, 3}, Ints{4, 2}, Ints{}}) {
          const Ints cache = is_dense ? Ints{15 * row, 5 * row, row} : Ints{3 * row, row, 6 * row};
          const Ints update = {6 * row, 2 * row, row};
          const ByteVector before = random_bytes(static_cast<std::size_t>(30 * row), 1);
          const ByteVector added = random_bytes(static_cast<std::size_t>(12 * row), 2);
          ByteVector expected = before;
          bool is_out = false;
          for (std::int64_t sample = 0; sample < 2; ++sample)
            for (std::int64_t part = 0; part < 3; ++part)
              for (std::int64_t step = 0; step < 2; ++step) {
                std::int64_t at = (first.empty() ? 0 : first[static_cast<std::size_t>(sample)]) + step;
                if (at >= 5 && !is_circular) {
                  is_out = true;
                  continue;
                }
                at %= 5;
                const auto from = added.begin() + sample * update[0] + part * update[1] + step * update[2];
                std::copy(from, from + row, expected.begin() + sample * cache[0] + part * cache[1] + at * cache[2]);
              }
          std::vector<ByteVector> inputs = {before, added};
          if (!first.empty()) inputs.push_back(bytes_of_values(first));
          AttributeMap attributes = {{"batch", 2},
                                     {"parts", 3},
                                     {"rows", 5},
                                     {"steps", 2},
                                     {"row_bytes", row},
                                     {"cache", cache},
                                     {"update", update},
                                     {"positions", std::int64_t{!first.empty()}},
                                     {"circular", std::int64_t{is_circular}}};
          std::vector<ByteVector> actual = {before};
          const Fault fault =
              run_bytes(target, tensor_scatter_operations, "tensor_scatter", attributes, inputs, actual);
          expect(actual[0] == expected && fault.found == is_out,
                 "rows of " + std::to_string(row) + " bytes into a cache");
          if (first.empty()) continue;
          attributes["expected"] = first[0];
          actual = {before};
          const Fault other =
              run_bytes(target, tensor_scatter_operations, "tensor_scatter", attributes, inputs, actual);
          expect(other.found && (is_out || other.index == first[1]), "another position than the expected one");
        }
  const AttributeMap overlapping = {{"batch", 2},     {"parts", 1},
                                    {"rows", 2},      {"steps", 1},
                                    {"row_bytes", 4}, {"cache", Ints{4, 0, 4}},
                                    {"positions", 0}, {"update", Ints{4, 4, 4}}};
  expect_refused(target, tensor_scatter_operations, "tensor_scatter", overlapping, {12, 8}, {12}, "overlap");
  AttributeMap uneven = {{"batch", 1},      {"parts", 1},
                         {"rows", 1},       {"steps", 1},
                         {"row_bytes", 8},  {"cache", Ints{0, 0, 5}},
                         {"positions", 0},  {"update", Ints{0, 0, 8}},
                         {"format", "bf16"}};
  expect_refused(target, tensor_scatter_operations, "tensor_scatter", uneven, {4, 8}, {4}, "multiples of 2 bytes");
  uneven["cache"] = Ints{0, 0, 4};
  uneven["update"] = Ints{2, 0, 8};
  expect_refused(target, tensor_scatter_operations, "tensor_scatter", uneven, {4, 8}, {4}, "multiples of 4 bytes");
  // A cache without rows has no place for a step.
  std::vector<ByteVector> none = {{}};
  const AttributeMap empty = {{"batch", 1},     {"parts", 1},
                              {"rows", 0},      {"steps", 1},
                              {"row_bytes", 4}, {"cache", Ints{0, 0, 4}},
                              {"positions", 0}, {"update", Ints{4, 4, 4}},
                              {"circular", 1}};
  const Fault fault =
      run_bytes(target, tensor_scatter_operations, "tensor_scatter", empty, {{}, random_bytes(4, 3)}, none);
  expect(fault.found, "a step into a cache without rows");
}

// Rows that a cache keeps in fewer bits: within half a step of what was given, and the same when narrowed again.
void narrow_caches(const Target& target) {
  for (const std::int64_t size : {1, 5, 16, 37, 64})
    for (const std::string format : {"bf16", "f16", "i8"}) {
      const bool is_int8 = format == "i8";
      constexpr std::int64_t kSteps = 7, kRows = 9, kFirst = 2;
      const std::int64_t element = is_int8 ? 1 : 2, row = is_int8 ? size + 4 : 2 * size;
      std::vector<float> given = random_floats(kSteps * size, 3);
      for (std::int64_t i = 0; i < size; ++i) given[i] = 0.0f;           // a row of zeros
      for (std::int64_t i = 0; i < size; ++i) given[size + i] *= 1e20f;  // and one of great numbers
      given[2 * size] = std::numeric_limits<float>::infinity();
      const AttributeMap attributes = {{"batch", 1},
                                       {"parts", 1},
                                       {"rows", kRows},
                                       {"steps", kSteps},
                                       {"row_bytes", 4 * size},
                                       {"cache", Ints{kRows * row, 0, row}},
                                       {"update", Ints{kSteps * size * 4, 0, size * 4}},
                                       {"positions", 0},
                                       {"expected", kFirst},
                                       {"format", format}};
      const ByteVector before(kRows * row, 0x55);
      const auto write = [&](const std::vector<float>& values) {
        std::vector<ByteVector> y = {before};
        const Fault fault = run_bytes(target, tensor_scatter_operations, "tensor_scatter", attributes,
                                      {before, bytes_of_values(values)}, y, alignof(float));
        expect(!fault.found, "narrow rows without a position");
        return y[0];
      };
      const ByteVector kept = write(given);
      expect(std::equal(before.begin(), before.begin() + kFirst * row, kept.begin()), "rows before the position");
      std::vector<float> widened;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const auto* codes = reinterpret_cast<const unsigned char*>(kept.data()) + (kFirst + step) * row;
        float scale = 0.0f, largest = 0.0f;
        if (is_int8) std::memcpy(&scale, codes + size, 4);
        for (std::int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(given[step * size + i]));
        for (std::int64_t i = 0; i < size; ++i) {
          const float x = given[step * size + i];
          std::uint16_t half = 0;
          std::memcpy(&half, codes + i * element, static_cast<std::size_t>(element));
          const float y = is_int8           ? static_cast<float>(static_cast<signed char>(codes[i])) * scale
                          : format == "f16" ? to_f32(F16{half})
                                            : to_f32(Bf16{half});
          widened.push_back(y);
          if (is_int8 && step == 2)
            expect(std::isnan(y), "a row with an infinity");
          else if (is_int8)
            expect(std::abs(y - x) <= largest * (0.5001f / 127), "a step of 8 bits");
          else if (format == "bf16")
            expect(y == to_f32(to_bf16(x)), "rounded to bf16");
          else
            expect(std::abs(x) >= 65520 ? std::isinf(y) : std::abs(y - x) <= std::abs(x) * 0x1p-11f + 0x1p-25f,
                   "rounded to f16");
        }
      }
      expect(write(widened) == kept, "narrowed again");
    }
}

void refusals(const Target& target) {
  const AttributeMap gather = {{"element_bytes", 4}, {"index_bytes", 8}, {"outer", 1},
                               {"axis", 4},          {"inner", 1},       {"count", 3}};
  const auto with = [](AttributeMap attributes, const std::string& name, Attributes::Value value) {
    attributes[name] = std::move(value);
    return attributes;
  };
  const auto refused = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    expect_refused(target, gather_operations, "gather", with(gather, name, value), {16, 24}, {12}, message);
  };
  refused("index_bytes", 5, "4 or 8");
  refused("element_bytes", 3, "1, 2, 4 or 8");
  refused("axis", 5, "bytes; expected 20");
  refused("count", 4, "bytes; expected 32");
  refused("outer", std::int64_t{1} << 60, "overflows");
  expect_refused(
      target, gather_operations, "gather_elements",
      {{"element_bytes", 4}, {"index_bytes", 8}, {"data_shape", Ints{2, 2}}, {"shape", Ints{3, 1}}, {"axis", 1}},
      {16, 24}, {12}, "dimension 0 of the indices");
  expect_refused(
      target, scatter_operations, "scatter_nd",
      {{"type", "u8"}, {"op", "add"}, {"index_bytes", 8}, {"data_shape", Ints{4}}, {"count", 1}, {"depth", 1}},
      {16, 8, 4}, {16}, "expected one of f32, f64, i32, i64");
  expect_refused(
      target, scatter_operations, "scatter_nd",
      {{"element_bytes", 4}, {"op", "none"}, {"index_bytes", 8}, {"data_shape", Ints{4}}, {"count", 1}, {"depth", 2}},
      {16, 16, 4}, {16}, "expected 0 to 1");
}

}  // namespace

int main() {
  return run_cases({{"gather", gathers},
                    {"gather_elements", gathers_of_elements},
                    {"gather_nd", gathers_of_tuples},
                    {"one_hot", one_hots},
                    {"out of range", out_of_range},
                    {"scatter", scatters},
                    {"not a number", not_a_number},
                    {"nothing", nothing},
                    {"steps into caches", steps_into_caches},
                    {"narrow caches", narrow_caches},
                    {"refusals", refusals}});
}
