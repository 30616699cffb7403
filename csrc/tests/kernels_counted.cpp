// Operations that count a length of their results: NonMaxSuppression, NonZero, Compress, Unique, against plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry non_max_suppression_operations[];
extern const OperationEntry compaction_operations[];
extern const OperationEntry unique_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Longs = std::vector<std::int64_t>;

std::int64_t count_in(const ByteVector& bytes) {
  return value_at<std::int64_t>(bytes, 0);
}

// The front of the values of an output.
template <class T>
std::vector<T> front(const ByteVector& bytes, std::int64_t count) {
  std::vector<T> values = values_of_bytes<T>(bytes);
  values.resize(static_cast<std::size_t>(count));
  return values;
}

struct Overlap {
  bool is_centered;
  float most, least;
};

double common_share(const float* a, const float* b, bool is_centered) {
  double common = 1, area_a = 1, area_b = 1;
  for (int axis = 0; axis < 2; ++axis) {
    const auto ends = [&](const float* box) {
      const double first = static_cast<double>(box[axis]), second = static_cast<double>(box[2 + axis]);
      if (is_centered) return std::make_pair(first - std::abs(second) / 2, first + std::abs(second) / 2);
      return std::make_pair(std::min(first, second), std::max(first, second));
    };
    const auto [low_a, high_a] = ends(a);
    const auto [low_b, high_b] = ends(b);
    area_a *= high_a - low_a;
    area_b *= high_b - low_b;
    common *= std::max(0.0, std::min(high_a, high_b) - std::max(low_a, low_b));
  }
  return area_a > 0 && area_b > 0 ? common / (area_a + area_b - common) : 0;
}

Longs selected(const std::vector<float>& boxes, const std::vector<float>& scores, std::int64_t classes,
               std::int64_t count, std::int64_t limit, Overlap given) {
  Longs found;
  const std::int64_t tasks = count == 0 ? 0 : static_cast<std::int64_t>(scores.size()) / count;
  for (std::int64_t task = 0; task < tasks; ++task) {
    const float* all = boxes.data() + task / classes * count * 4;
    const float* score = scores.data() + task * count;
    Longs order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    order.erase(std::remove_if(order.begin(), order.end(), [&](std::int64_t i) { return !(score[i] > given.least); }),
                order.end());
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return score[a] > score[b]; });
    Longs kept;
    for (const std::int64_t i : order) {
      if (static_cast<std::int64_t>(kept.size()) == limit) break;
      const bool is_hidden = std::any_of(kept.begin(), kept.end(), [&](std::int64_t other) {
        return common_share(all + i * 4, all + other * 4, given.is_centered) > static_cast<double>(given.most);
      });
      if (!is_hidden) kept.push_back(i);
    }
    for (const std::int64_t i : kept) found.insert(found.end(), {task / classes, task % classes, i});
  }
  return found;
}

void check_boxes(const Target& target, std::int64_t batches, std::int64_t classes, std::int64_t boxes,
                 std::int64_t limit, Overlap given) {
  Dice dice(static_cast<std::uint32_t>(boxes * 31 + limit));
  std::vector<float> corners, scores;
  // Multiples of 1/8: areas are exact, and many scores are equal. Thresholds lie between the possible shares.
  for (std::int64_t i = 0; i < batches * boxes * 4; ++i) corners.push_back(static_cast<float>(dice.roll(40)) / 8);
  for (std::int64_t i = 0; i < batches * classes * boxes; ++i) {
    const std::int64_t value = dice.roll(20);
    scores.push_back(value == 19   ? std::numeric_limits<float>::quiet_NaN()
                     : value == 18 ? -0.0f
                                   : static_cast<float>(value - 6) / 8);
  }
  std::vector<ByteVector> outputs = {ByteVector(static_cast<std::size_t>(batches * classes * limit * 24)),
                                     ByteVector(8)};
  run_bytes(target, non_max_suppression_operations, "non_max_suppression",
            {{"batches", batches},
             {"classes", classes},
             {"boxes", boxes},
             {"limit", limit},
             {"centered", std::int64_t{given.is_centered}},
             {"overlap", std::int64_t{1}},
             {"least", std::int64_t{1}}},
            {bytes_of_values(corners), bytes_of_values(scores), bytes_of_values(std::vector<float>{given.most}),
             bytes_of_values(std::vector<float>{given.least})},
            outputs, 8);
  const Longs expected = selected(corners, scores, classes, boxes, limit, given);
  const std::string what = std::to_string(boxes) + " boxes, limit " + std::to_string(limit);
  if (expect(count_in(outputs[1]) * 3 == static_cast<std::int64_t>(expected.size()), what + ": count"))
    expect(front<std::int64_t>(outputs[0], count_in(outputs[1]) * 3) == expected, what);
}

void boxes(const Target& target) {
  for (const std::int64_t count : {0, 1, 2, 15, 16, 17, 40, 300})
    for (const std::int64_t limit : {0, 1, 5, 300})
      for (const bool is_centered : {false, true}) {
        check_boxes(target, 2, 3, count, std::min(limit, count), {is_centered, 0.30103f, -0.55f});
        check_boxes(target, 1, 1, count, std::min(limit, count), {is_centered, 0.77777f, 0.05f});
      }
  check_boxes(target, 0, 3, 4, 4, {false, 0.5f, 0});
  check_boxes(target, 2, 0, 4, 4, {false, 0.5f, 0});
}

void boxes_of_nan(const Target& target) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::infinity();
  // Equal boxes: each hides those after it, unless it has no area or a NaN.
  const std::vector<float> corners = {0, 0, 1, 1, 0, 0, 1, 1, nan, 0, 1, 1, 0, nan, 1, 1, 2, 2, 2, 3, 2, 2, 2, 3};
  std::vector<ByteVector> outputs = {ByteVector(6 * 24), ByteVector(8)};
  run_bytes(target, non_max_suppression_operations, "non_max_suppression",
            {{"batches", std::int64_t{1}},
             {"classes", std::int64_t{1}},
             {"boxes", std::int64_t{6}},
             {"limit", std::int64_t{6}}},
            {bytes_of_values(corners), bytes_of_values(std::vector<float>{1, 2, 3, 4, most, 6})}, outputs, 8);
  expect(
      front<std::int64_t>(outputs[0], 3 * count_in(outputs[1])) == Longs{0, 0, 4, 0, 0, 5, 0, 0, 3, 0, 0, 2, 0, 0, 1},
      "boxes with NaN, and without an area");
}

template <class T>
void check_nonzero(const Target& target, const std::string& type, const Longs& dims, std::int64_t sides) {
  const std::int64_t size = std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
  Dice dice(static_cast<std::uint32_t>(size + sides));
  std::vector<T> x;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t value = dice.roll(sides);
    x.push_back(value == 1 ? static_cast<T>(-static_cast<T>(0)) : static_cast<T>(value));
  }
  std::vector<Longs> places(dims.size());
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (x[static_cast<std::size_t>(i)] == T(0)) continue;
    ++count;
    std::int64_t rest = i;
    for (std::size_t axis = dims.size(); axis-- > 0; rest /= dims[axis]) places[axis].push_back(rest % dims[axis]);
  }
  Longs expected;
  for (const Longs& each : places) expected.insert(expected.end(), each.begin(), each.end());
  std::vector<ByteVector> outputs = {ByteVector(static_cast<std::size_t>(size) * dims.size() * 8), ByteVector(8)};
  run_bytes(target, compaction_operations, "nonzero", {{"type", type}, {"dims", dims}}, {bytes_of_values(x)}, outputs,
            8, 5);
  const std::string what = "nonzero " + type + " " + std::to_string(size);
  if (expect(count_in(outputs[1]) == count, what + ": count"))
    expect(front<std::int64_t>(outputs[0], static_cast<std::int64_t>(expected.size())) == expected, what);
}

void nonzero(const Target& target) {
  for (const Longs& dims : {Longs{}, Longs{0}, Longs{3, 0}, Longs{1}, Longs{2, 3, 5}, Longs{7, 1, 1, 9}, Longs{70000},
                            Longs{3, 33333}, Longs{1, 1, 50001, 2}})
    for (const std::int64_t sides : {1, 2, 3, 50}) {
      check_nonzero<float>(target, "f32", dims, sides);
      check_nonzero<std::uint8_t>(target, "bool", dims, std::min<std::int64_t>(sides, 2));
    }
  check_nonzero<double>(target, "f64", {5, 11}, 3);
  check_nonzero<std::int16_t>(target, "i16", {5, 11}, 3);
  check_nonzero<std::int64_t>(target, "i64", {5, 11}, 3);
  // Of narrow reals, a zero with a sign is zero, and a NaN is not.
  std::vector<ByteVector> outputs = {ByteVector(32), ByteVector(8)};
  for (const std::string type : {"f16", "bf16"}) {
    run_bytes(target, compaction_operations, "nonzero", {{"type", type}, {"dims", Longs{4}}},
              {bytes_of_values(std::vector<std::uint16_t>{0x8000, 0xFFFF, 0, 0x8001})}, outputs, 8);
    expect(count_in(outputs[1]) == 2 && front<std::int64_t>(outputs[0], 2) == Longs{1, 3}, type);
  }
}

void check_compress(const Target& target, std::int64_t outer, std::int64_t axis, std::int64_t inner,
                    std::int64_t conditions, std::int64_t sides) {
  const auto seed = static_cast<std::uint32_t>(outer * 7 + axis * 3 + inner + sides);
  const ByteVector data = random_bytes(static_cast<std::size_t>(outer * axis * inner), seed);
  Dice dice(seed);
  std::vector<char> condition;
  for (std::int64_t i = 0; i < conditions; ++i) condition.push_back(i < axis && dice.roll(sides) == 0);
  ByteVector expected;
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < std::min(axis, conditions); ++i)
      if (condition[static_cast<std::size_t>(i)] != 0) {
        const auto from = data.begin() + (o * axis + i) * inner;
        expected.insert(expected.end(), from, from + inner);
      }
  const std::int64_t count = std::count(condition.begin(), condition.end(), 1);
  std::vector<ByteVector> outputs = {ByteVector(static_cast<std::size_t>(outer * std::min(axis, conditions) * inner)),
                                     ByteVector(8)};
  const Fault fault = run_bytes(target, compaction_operations, "compress",
                                {{"outer", outer}, {"axis", axis}, {"inner", inner}, {"conditions", conditions}},
                                {data, condition}, outputs, 8, 5);
  const std::string what = "compress " + std::to_string(outer) + "x" + std::to_string(axis) + "x" +
                           std::to_string(inner) + " by " + std::to_string(conditions);
  expect(!fault.found, what + ": fault");
  if (expect(count_in(outputs[1]) == count, what + ": count"))
    expect(front<char>(outputs[0], static_cast<std::int64_t>(expected.size())) == expected, what);
}

void compress(const Target& target) {
  for (const std::int64_t outer : {0, 1, 3})
    for (const std::int64_t axis : {0, 1, 9, 40000})
      for (const std::int64_t inner : {1, 4, 8, 12})
        for (const std::int64_t conditions : {std::int64_t{0}, axis / 2, axis, axis + 5})
          for (const std::int64_t sides : {1, 3}) check_compress(target, outer, axis, inner, conditions, sides);
  std::vector<ByteVector> outputs = {ByteVector(3), ByteVector(8)};
  const Fault fault = run_bytes(target, compaction_operations, "compress",
                                {{"outer", std::int64_t{1}},
                                 {"axis", std::int64_t{3}},
                                 {"inner", std::int64_t{1}},
                                 {"conditions", std::int64_t{5}}},
                                {ByteVector(3), ByteVector{1, 0, 1, 0, 1}}, outputs, 8);
  expect(fault.found && fault.index == 4 && fault.size == 3, "an element beyond the axis");
}

// -1, 0, 1 as the first of the elements comes before, with or after the second; a NaN comes last.
template <class T>
int compared(T a, T b) {
  const bool nan_a = a != a, nan_b = b != b;
  if (nan_a || nan_b) return nan_a - nan_b;
  return (a > b) - (a < b);
}

template <class T>
void check_unique(const Target& target, const std::string& type, std::int64_t outer, std::int64_t axis,
                  std::int64_t inner, const std::vector<T>& values, bool is_sorted, bool joins_nans) {
  const auto size = static_cast<std::size_t>(outer * axis * inner);
  Dice dice(static_cast<std::uint32_t>(size + values.size() + is_sorted));
  std::vector<T> x;
  for (std::size_t i = 0; i < size; ++i)
    x.push_back(values[static_cast<std::size_t>(dice.roll(static_cast<std::int64_t>(values.size())))]);
  const auto slice = [&](std::int64_t i) {
    std::vector<T> made;
    for (std::int64_t o = 0; o < outer; ++o)
      for (std::int64_t j = 0; j < inner; ++j) made.push_back(x[static_cast<std::size_t>((o * axis + i) * inner + j)]);
    return made;
  };
  const auto order = [&](std::int64_t a, std::int64_t b) {
    const std::vector<T> first = slice(a), second = slice(b);
    for (std::size_t i = 0; i < first.size(); ++i)
      if (const int found = compared(first[i], second[i])) return found;
    return 0;
  };
  const auto has_nan = [&](std::int64_t i) {
    const std::vector<T> made = slice(i);
    return std::any_of(made.begin(), made.end(), [](T value) { return value != value; });
  };
  Longs first, inverse, counts;
  for (std::int64_t i = 0; i < axis; ++i) {
    std::size_t group = 0;
    while (group < first.size() && (order(first[group], i) != 0 || (has_nan(i) && !joins_nans))) ++group;
    if (group == first.size()) {
      first.push_back(i);
      counts.push_back(0);
    }
    ++counts[group];
    inverse.push_back(static_cast<std::int64_t>(group));
  }
  Longs ranks(first.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (is_sorted)
    std::stable_sort(ranks.begin(), ranks.end(), [&](std::int64_t a, std::int64_t b) {
      return order(first[static_cast<std::size_t>(a)], first[static_cast<std::size_t>(b)]) < 0;
    });
  Longs sorted_first, sorted_counts, number(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto group = static_cast<std::size_t>(ranks[i]);
    sorted_first.push_back(first[group]);
    sorted_counts.push_back(counts[group]);
    number[group] = static_cast<std::int64_t>(i);
  }
  for (std::int64_t& each : inverse) each = number[static_cast<std::size_t>(each)];
  std::vector<T> expected;
  for (std::int64_t o = 0; o < outer; ++o)
    for (const std::int64_t i : sorted_first)
      for (std::int64_t j = 0; j < inner; ++j)
        expected.push_back(x[static_cast<std::size_t>((o * axis + i) * inner + j)]);
  const auto room = static_cast<std::size_t>(axis * 8);
  std::vector<ByteVector> outputs = {ByteVector(size * sizeof(T)), ByteVector(room), ByteVector(room), ByteVector(room),
                                     ByteVector(8)};
  run_bytes(target, unique_operations, "unique",
            {{"type", type},
             {"outer", outer},
             {"axis", axis},
             {"inner", inner},
             {"sorted", std::int64_t{is_sorted}},
             {"joins_nans", std::int64_t{joins_nans}},
             {"first", std::int64_t{1}},
             {"inverse", std::int64_t{1}},
             {"counts", std::int64_t{1}}},
            {bytes_of_values(x)}, outputs, 8);
  const std::string what = "unique " + type + " " + std::to_string(outer) + "x" + std::to_string(axis) + "x" +
                           std::to_string(inner) + (is_sorted ? " sorted" : "");
  const auto groups = static_cast<std::int64_t>(sorted_first.size());
  if (!expect(count_in(outputs[4]) == groups, what + ": count")) return;
  expect(front<char>(outputs[0], outer * groups * inner * static_cast<std::int64_t>(sizeof(T))) ==
             bytes_of_values(expected),
         what + ": values");
  expect(front<std::int64_t>(outputs[1], groups) == sorted_first, what + ": first");
  expect(values_of_bytes<std::int64_t>(outputs[2]) == inverse, what + ": inverse");
  expect(front<std::int64_t>(outputs[3], groups) == sorted_counts, what + ": counts");
}

void unique(const Target& target) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::infinity();
  const std::vector<float> reals = {0.0f, -0.0f, nan, -nan, most, -most, 1.5f, -1.5f, 1e-40f, -2e30f};
  for (const bool is_sorted : {false, true})
    for (const std::int64_t axis : {0, 1, 2, 9, 300})
      for (const bool joins_nans : {false, true}) {
        check_unique<float>(target, "f32", 1, axis, 1, reals, is_sorted, joins_nans);
        check_unique<float>(target, "f32", 2, axis, 3, {0.0f, -0.0f, 1.0f}, is_sorted, joins_nans);
        check_unique<float>(target, "f32", 2, axis, 1, {0.0f, nan, 1.0f}, is_sorted, joins_nans);
        check_unique<std::int64_t>(target, "i64", 3, axis, 1, {INT64_MIN, -1, INT64_MAX}, is_sorted, joins_nans);
      }
  check_unique<double>(target, "f64", 1, 60, 1, {0.0, -0.0, 1e300, -1e300, 1.0, 2.0}, true, true);
  check_unique<std::int8_t>(target, "i8", 1, 60, 2, {-128, -1, 0, 127}, true, true);
  check_unique<std::uint8_t>(target, "u8", 1, 60, 2, {0, 1, 128, 255}, true, true);
  check_unique<std::uint8_t>(target, "bool", 1, 60, 3, {0, 1}, true, true);
  check_unique<std::int16_t>(target, "i16", 1, 60, 1, {-300, -1, 0, 299}, true, true);
  check_unique<std::uint16_t>(target, "u16", 1, 60, 1, {0, 300, 65535}, true, true);
  check_unique<std::int32_t>(target, "i32", 1, 60, 1, {INT32_MIN, -5, 7}, false, true);
  check_unique<std::uint32_t>(target, "u32", 1, 60, 1, {0, 1u << 31, 7}, true, true);
  check_unique<std::uint64_t>(target, "u64", 1, 60, 1, {0, 1ull << 63, 7}, true, true);
  check_unique<float>(target, "f32", 0, 5, 1, {1.0f}, true, true);
}

void unique_of_narrow_reals(const Target& target) {
  struct Narrow {
    std::string type;
    std::vector<std::uint16_t> x, expected;
  };
  // 1, -0, NaN, -1, 0, another NaN, infinity, of the format.
  for (const Narrow& each :
       {Narrow{"f16", {0x3C00, 0x8000, 0x7E00, 0xBC00, 0, 0xFC01, 0x7C00}, {0xBC00, 0x8000, 0x3C00, 0x7C00, 0x7E00}},
        Narrow{
            "bf16", {0x3F80, 0x8000, 0x7FC0, 0xBF80, 0, 0xFF81, 0x7F80}, {0xBF80, 0x8000, 0x3F80, 0x7F80, 0x7FC0}}}) {
    std::vector<ByteVector> outputs = {ByteVector(14), ByteVector(8)};
    run_bytes(target, unique_operations, "unique",
              {{"type", each.type},
               {"outer", std::int64_t{1}},
               {"axis", std::int64_t{7}},
               {"inner", std::int64_t{1}},
               {"sorted", std::int64_t{1}},
               {"joins_nans", std::int64_t{1}}},
              {bytes_of_values(each.x)}, outputs, 8);
    expect(front<std::uint16_t>(outputs[0], count_in(outputs[1])) == each.expected, "unique " + each.type);
  }
}

void refused(const Target& target) {
  const AttributeMap few = {{"batches", std::int64_t{1}},
                            {"classes", std::int64_t{1}},
                            {"boxes", std::int64_t{2}},
                            {"limit", std::int64_t{3}}};
  expect_refused(target, non_max_suppression_operations, "non_max_suppression", few, {32, 8}, {72, 8}, "limit");
  expect_refused(target, compaction_operations, "nonzero", {{"type", "f32"}, {"dims", Longs{2, 3}}}, {24}, {95, 8},
                 "output 0");
  expect_refused(target, compaction_operations, "nonzero", {{"type", "f32"}, {"dims", Longs(17, 1)}}, {4}, {136, 8},
                 "dims");
  const AttributeMap rows = {{"outer", std::int64_t{1}},
                             {"axis", std::int64_t{4}},
                             {"inner", std::int64_t{8}},
                             {"conditions", std::int64_t{3}}};
  expect_refused(target, compaction_operations, "compress", rows, {32, 2}, {24, 8}, "input 1");
  expect_refused(target, compaction_operations, "compress", rows, {32, 3}, {23, 8}, "output 0");
}

}  // namespace

int main() {
  return run_cases({{"boxes", boxes},
                    {"boxes of NaN", boxes_of_nan},
                    {"nonzero", nonzero},
                    {"compress", compress},
                    {"unique", unique},
                    {"unique of narrow reals", unique_of_narrow_reals},
                    {"refused", refused}},
                   {"nms_select", "nonzero_write", "compress_write", "unique"});
}
