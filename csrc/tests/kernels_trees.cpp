// Tree ensembles against a walk of one row after another: every comparison, NaN, types, folds, parts, forged trees.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/trees.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry trees_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

template <class T>
struct Ensemble {
  std::vector<TreeNode<T>> nodes;
  std::vector<std::uint32_t> roots;
  std::vector<TreeWeight<T>> weights;
};

constexpr std::int64_t kFeatures = 5;

// Appends a tree whose leaves have `votes` weights of `targets`.
template <class T>
void grow(Ensemble<T>& made, Dice& dice, int depth, int kinds, std::int64_t targets, std::int64_t votes, bool single) {
  const std::size_t at = made.nodes.size();
  made.nodes.push_back({});
  if (depth == 0 || dice.roll(6) == 0) {
    TreeNode<T>& leaf = made.nodes[at];
    leaf.feature = kTreeLeaf;
    leaf.threshold = single ? static_cast<T>(dice.roll(64)) - 32 : T(0);
    leaf.skip = static_cast<std::uint32_t>(made.weights.size());
    leaf.kind = static_cast<std::uint32_t>(votes);
    for (std::int64_t i = 0; i < votes && !single; ++i)
      made.weights.push_back({static_cast<T>(dice.roll(64)) - 32, static_cast<std::uint32_t>(dice.roll(targets))});
    return;
  }
  made.nodes[at].feature = static_cast<std::uint32_t>(dice.roll(kFeatures));
  made.nodes[at].threshold = static_cast<T>(dice.roll(5)) - 2;
  made.nodes[at].kind = static_cast<std::uint32_t>((kinds == 4 ? dice.roll(4) : kinds) | dice.roll(2) * 4);
  grow(made, dice, depth - 1, kinds, targets, votes, single);
  made.nodes[at].skip = static_cast<std::uint32_t>(made.nodes.size() - at - 1);
  grow(made, dice, depth - 1, kinds, targets, votes, single);
}

template <class T>
const TreeNode<T>& leaf_of(const Ensemble<T>& trees, std::uint32_t root, const std::vector<T>& row) {
  std::size_t at = root;
  while (trees.nodes[at].feature != kTreeLeaf) {
    const TreeNode<T>& node = trees.nodes[at];
    const T x = row[node.feature], value = node.threshold;
    bool holds = false;
    if (std::isnan(x)) {
      holds = (node.kind & kTreeNanIsNext) != 0;
    } else {
      const bool choices[] = {x <= value, x < value, x == value, x != value};
      holds = choices[node.kind & 3];
    }
    at += holds ? 1 : 1 + node.skip;
  }
  return trees.nodes[at];
}

template <class T>
std::vector<T> sums_of(const Ensemble<T>& trees, const std::vector<T>& row, std::int64_t targets, bool single,
                       const std::string& fold) {
  std::vector<T> sums(static_cast<std::size_t>(targets), T(0));
  std::vector<bool> is_set(sums.size(), false);
  const auto add = [&](std::size_t target, T value) {
    T& sum = sums[target];
    if (fold == "sum")
      sum += value;
    else if (!is_set[target])
      sum = value;
    else
      sum = fold == "min" ? std::min(sum, value) : std::max(sum, value);
    is_set[target] = true;
  };
  for (const std::uint32_t root : trees.roots) {
    const TreeNode<T>& leaf = leaf_of(trees, root, row);
    if (single) add(0, leaf.threshold);
    for (std::uint32_t i = 0; i < leaf.kind && !single; ++i)
      add(trees.weights[leaf.skip + i].target, trees.weights[leaf.skip + i].value);
  }
  return sums;
}

template <class In>
In sample(Dice& dice) {
  const std::int64_t value = dice.roll(8);
  if (value == 7 && std::is_floating_point<In>::value) return std::numeric_limits<In>::quiet_NaN();
  return static_cast<In>(value - 3);
}

AttributeMap attributes(std::int64_t rows, std::int64_t nodes, std::int64_t trees, std::int64_t weights,
                        std::int64_t targets, bool single) {
  return {{"type", "f32"},       {"compute", "f32"},      {"result", "f32"},
          {"rows", rows},        {"nodes", nodes},        {"trees", trees},
          {"weights", weights},  {"features", kFeatures}, {"targets", targets},
          {"columns", targets},  {"compare", "any"},      {"fold", "sum"},
          {"transform", "none"}, {"complement", "none"},  {"single", std::int64_t{single}}};
}

// Sums of small integers, which are exact in any order.
template <class In, class T>
void check(const Target& target, const std::string& type, std::int64_t rows, std::int64_t count, int kinds, bool single,
           const std::string& fold) {
  const std::string what = type + " " + std::to_string(rows) + "x" + std::to_string(count) + " " + fold;
  Dice dice(static_cast<std::uint32_t>(rows * 131 + count * 7 + kinds));
  const std::int64_t targets = single ? 1 : 3;
  Ensemble<T> trees;
  for (std::int64_t i = 0; i < count; ++i) {
    trees.roots.push_back(static_cast<std::uint32_t>(trees.nodes.size()));
    grow(trees, dice, 4, kinds, targets, i % 3, single);
  }
  std::vector<In> x;
  for (std::int64_t i = 0; i < rows * kFeatures; ++i) x.push_back(sample<In>(dice));
  std::vector<T> expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<T> values(x.begin() + row * kFeatures, x.begin() + (row + 1) * kFeatures);
    for (const T sum : sums_of(trees, values, targets, single, fold)) expected.push_back(sum);
  }
  const std::string compute = sizeof(T) == 8 ? "f64" : "f32";
  AttributeMap given = attributes(rows, static_cast<std::int64_t>(trees.nodes.size()), count,
                                  static_cast<std::int64_t>(trees.weights.size()), targets, single);
  given["type"] = type;
  given["compute"] = given["result"] = compute;
  given["fold"] = fold;
  given["compare"] = kinds == 0 ? "leq" : kinds == 1 ? "less" : "any";
  std::vector<ByteVector> inputs = {bytes_of_values(x), bytes_of_values(trees.nodes), bytes_of_values(trees.roots)};
  if (!single) inputs.push_back(bytes_of_values(trees.weights));
  std::vector<ByteVector> outputs = {ByteVector(expected.size() * sizeof(T))};
  run_bytes(target, trees_operations, "trees", given, inputs, outputs, 8);
  expect(values_of_bytes<T>(outputs[0]) == expected, what);
}

void sums(const Target& target) {
  for (const std::int64_t rows : {0, 1, 3, 8, 13, 70, 200})
    for (const std::int64_t count : {0, 1, 5, 8, 9, 200})
      for (int kinds = 0; kinds <= 4; kinds += 1 + (count == 200)) {
        check<float, float>(target, "f32", rows, count, kinds, true, "sum");
        check<float, float>(target, "f32", rows, count, kinds, false, "sum");
      }
  for (const std::string fold : {"min", "max"}) {
    check<float, float>(target, "f32", 70, 9, 4, false, fold);
    check<double, double>(target, "f64", 3, 200, 4, true, fold);
  }
  check<double, double>(target, "f64", 70, 9, 4, false, "sum");
  check<float, double>(target, "f32", 13, 9, 4, false, "sum");
  check<std::int32_t, float>(target, "i32", 13, 9, 4, true, "sum");
  check<std::int64_t, float>(target, "i64", 13, 9, 4, true, "sum");
}

// One leaf of the value s and one of -s.
std::vector<float> scores(const Target& target, const std::string& complement, const std::string& transform, float s,
                          bool share, std::int64_t& label) {
  const std::vector<TreeNode<float>> nodes = {{0, 0, 1, 0}, {s, kTreeLeaf, 0, 0}, {-s, kTreeLeaf, 0, 0}};
  const bool has_two = complement != "none";
  AttributeMap given = attributes(1, 3, 1, 0, 1, true);
  given["complement"] = complement;
  given["transform"] = transform;
  given["columns"] = std::int64_t{has_two ? 2 : 1};
  given["labels"] = std::int64_t{1};
  given["share"] = std::int64_t{share};
  std::vector<std::int64_t> labels = {50, 70};
  if (!has_two) labels.pop_back();
  std::vector<ByteVector> outputs = {ByteVector(labels.size() * 4), ByteVector(8)};
  run_bytes(target, trees_operations, "trees", given,
            {bytes_of_values(std::vector<float>(kFeatures, -1.0f)), bytes_of_values(nodes),
             bytes_of_values(std::vector<std::uint32_t>{0}), bytes_of_values(labels)},
            outputs, 8);
  label = values_of_bytes<std::int64_t>(outputs[1])[0];
  return values_of_bytes<float>(outputs[0]);
}

void results(const Target& target) {
  std::int64_t label = 0;
  const double bound = sum_tolerance(16);
  expect_close({0.25f, 0.75f}, scores(target, "one", "none", 0.75f, false, label), 0, "1 - s");
  expect(label == 70, "the second class");
  expect_close({0.5f, 0.5f}, scores(target, "one", "none", 0.5f, false, label), 0, "1 - s");
  expect(label == 50, "of equal ones the first");
  expect_close({-0.25f, 0.25f}, scores(target, "negative", "none", 0.25f, true, label), 0, "-s");
  expect(label == 50, "a share below one half");
  expect_close({0.26894143f, 0.73105857f}, scores(target, "negative", "logistic", 1.0f, false, label), bound,
               "logistic");
  expect_close({0.11920292f, 0.88079708f}, scores(target, "negative", "softmax", 1.0f, false, label), bound, "softmax");
  expect_close({0.5f, 0.5f}, scores(target, "negative", "softmax_zero", 0.0f, false, label), bound, "softmax of zeros");
  expect_close({1.0f}, scores(target, "none", "softmax", 3.0f, false, label), bound, "softmax of one");
  // The approximation is good to three digits.
  expect_close({-0.6745f, 0.6745f}, scores(target, "one", "probit", 0.75f, false, label), 2e-3, "probit");
}

// Whatever the numbers are, nothing outside is read or written, and the walk ends.
void forged(const Target& target) {
  for (std::uint32_t seed = 1; seed < 60; ++seed) {
    Dice dice(seed);
    const std::int64_t nodes = dice.roll(6), trees = dice.roll(20), weights = dice.roll(4), rows = 1 + dice.roll(20);
    const bool single = dice.roll(2) == 0;
    const auto noise = [&](std::int64_t bytes) {
      ByteVector made = random_bytes(static_cast<std::size_t>(bytes), seed);
      // Small numbers in some words, so that the walk goes on.
      for (std::size_t i = 0; i + 4 <= made.size(); i += 4)
        if (dice.roll(3) > 0) {
          const auto small = static_cast<std::uint32_t>(dice.roll(7));
          std::memcpy(made.data() + i, &small, 4);
        }
      return made;
    };
    std::vector<ByteVector> inputs = {noise(rows * kFeatures * 4),
                                      noise(nodes * static_cast<std::int64_t>(sizeof(TreeNode<float>))),
                                      noise(trees * 4)};
    if (!single) inputs.push_back(noise(weights * static_cast<std::int64_t>(sizeof(TreeWeight<float>))));
    const std::int64_t targets = single ? 1 : 2;
    std::vector<ByteVector> outputs = {ByteVector(static_cast<std::size_t>(rows * targets * 4))};
    run_bytes(target, trees_operations, "trees", attributes(rows, nodes, trees, weights, targets, single), inputs,
              outputs, 8);
  }
}

void refused(const Target& target) {
  const std::size_t node = sizeof(TreeNode<float>);
  AttributeMap given = attributes(2, 3, 1, 0, 1, true);
  expect_refused(target, trees_operations, "trees", given, {2 * kFeatures * 4, 3 * node - 1, 4}, {8}, "input 1");
  expect_refused(target, trees_operations, "trees", given, {2 * kFeatures * 4, 3 * node, 4}, {7}, "output 0");
  given["columns"] = std::int64_t{2};
  expect_refused(target, trees_operations, "trees", given, {2 * kFeatures * 4, 3 * node, 4}, {16}, "columns");
  given["compare"] = "more";
  expect_refused(target, trees_operations, "trees", given, {2 * kFeatures * 4, 3 * node, 4}, {16}, "compare");
}

}  // namespace

int main() {
  return run_cases({{"sums", sums}, {"results", results}, {"forged", forged}, {"refused", refused}},
                   {"tree_sums", "tree_scores"});
}
