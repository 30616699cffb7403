// Sums of the weights of the leaves that rows reach in decision trees, and the scores and labels made of them.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"
#include "kernels/score_codes.hpp"

namespace engine {

constexpr std::uint32_t kTreeLeaf = 0xFFFFFFFFu;  // the feature of a leaf; any that a row lacks is taken for one
constexpr std::uint32_t kTreeNanIsNext = 4;       // a flag of `kind`, beside the comparison: 0 <=, 1 <, 2 ==, 3 !=
constexpr std::int64_t kTreeRows = 64;            // rows that walk through one tree after another

// Node i: if the comparison of the feature with the threshold holds, or the feature is NaN and `kind` has the flag,
// node i + 1 is next, otherwise node i + 1 + skip. A leaf has the value in `threshold` if every leaf has one weight for
// the only target, and otherwise `kind` weights from `skip` on.
template <class T>
struct TreeNode {
  T threshold;
  std::uint32_t feature;
  std::uint32_t skip;
  std::uint32_t kind;
};

template <class T>
struct TreeWeight {
  T value;
  std::uint32_t target;
};

enum class TreeCompare : std::int32_t { kLeq, kLess, kAny };
enum class TreeFold : std::int32_t { kSum, kMin, kMax };

struct TreeArgs {
  ElementCode type;     // of the rows: f32, f64, i32, i64
  ElementCode compute;  // f32, f64: of thresholds, weights and sums
  ElementCode result;   // f32, f64: of the scores
  std::int64_t rows, features;
  std::int64_t nodes, trees, weights;
  std::int64_t targets;
  std::int64_t parts;  // into which the trees are divided; each has its own sums
  TreeCompare compare;
  TreeFold fold;
  bool is_single;  // every leaf has its only weight in the node
  bool is_average, has_base, has_labels, is_share;
  ScoreComplement complement;
  ScoreTransform transform;
  std::int64_t columns;  // of the scores
};

}  // namespace engine
