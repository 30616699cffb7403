// trees: x, nodes, roots, [weights], [base], [labels] -> scores, [label of each row]; see trees.hpp. Attributes:
//
//   type, compute, result (ElementCode), rows, features, nodes, trees, weights, targets, columns
//   compare ("leq", "less", "any"): of all nodes; fold ("sum", "min", "max")
//   complement ("none", "one", "negative"), transform ("none", "softmax", "logistic", "softmax_zero", "probit")
//   single, average, base, labels, share (0): see TreeArgs
#include "kernels/trees.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestTrees = std::int64_t{1} << 32;
constexpr std::int64_t kPartTrees = 64;  // at least, where one row is walked by several workers
constexpr std::int64_t kMaxParts = 16;
constexpr std::int64_t kShareWalks = 4096;  // walks through trees for which another worker is worthwhile

TreeArgs read_args(const Attributes& attributes) {
  TreeArgs args = {};
  args.type =
      read_code(attributes, "type", {ElementCode::kF32, ElementCode::kF64, ElementCode::kI32, ElementCode::kI64});
  args.compute = read_code(attributes, "compute", {ElementCode::kF32, ElementCode::kF64});
  args.result = read_code(attributes, "result", {ElementCode::kF32, ElementCode::kF64});
  args.rows = attributes.integer("rows", 0, kLargestTrees);
  args.features = attributes.integer("features", 0, kLargestTrees);
  args.nodes = attributes.integer("nodes", 0, kLargestTrees);
  args.trees = attributes.integer("trees", 0, kLargestTrees);
  args.weights = attributes.integer("weights", 0, kLargestTrees);
  args.targets = attributes.integer("targets", 1, kLargestTrees);
  args.columns = attributes.integer("columns", 1, kLargestTrees);
  args.compare = read_name<TreeCompare>(attributes, "compare", {"leq", "less", "any"});
  args.fold = read_name<TreeFold>(attributes, "fold", {"sum", "min", "max"});
  args.complement = read_name<ScoreComplement>(attributes, "complement", {"none", "one", "negative"});
  args.transform =
      read_name<ScoreTransform>(attributes, "transform", {"none", "softmax", "logistic", "softmax_zero", "probit"});
  args.is_single = attributes.flag("single");
  args.is_average = attributes.flag("average");
  args.has_base = attributes.flag("base");
  args.has_labels = attributes.flag("labels");
  args.is_share = attributes.flag("share");
  return args;
}

PreparedStep prepare_trees(const StepRequest& request) {
  TreeArgs args = read_args(request.attributes);
  const bool has_two = args.complement != ScoreComplement::kNone;
  if (args.columns != (has_two ? 2 : args.targets) || (has_two && args.targets != 1)) {
    throw PlanError("there are " + std::to_string(args.columns) + " columns for " + std::to_string(args.targets) +
                    " targets");
  }
  if (args.is_single && args.targets != 1) throw PlanError("leaves with one weight are for one target");
  if (args.is_share && args.columns != 2) throw PlanError("a share is of two columns");
  const bool is_wide = args.compute == ElementCode::kF64;
  const std::int64_t item = element_bytes(args.compute);
  const std::int64_t node = is_wide ? sizeof(TreeNode<double>) : sizeof(TreeNode<float>);
  const std::int64_t weight = is_wide ? sizeof(TreeWeight<double>) : sizeof(TreeWeight<float>);
  request.expect_operands(3u + !args.is_single + args.has_base + args.has_labels, 1u + args.has_labels);
  request.expect_input(0, checked_product({args.rows, args.features, element_bytes(args.type)}));
  request.expect_input(1, checked_product({args.nodes, node}));
  request.expect_input(2, checked_product({args.trees, 4}));
  std::size_t next = 3;
  if (!args.is_single) request.expect_input(next++, checked_product({args.weights, weight}));
  if (args.has_base) request.expect_input(next++, checked_product({args.targets, item}));
  if (args.has_labels) request.expect_input(next, checked_product({args.columns, 8}));
  request.expect_output(0, checked_product({args.rows, args.columns, element_bytes(args.result)}));
  if (args.has_labels) request.expect_output(1, checked_product({args.rows, 8}));
  const std::int64_t blocks = divide_up(args.rows, kTreeRows);
  args.parts = blocks > 1 ? 1 : std::clamp<std::int64_t>(args.trees / kPartTrees, 1, kMaxParts);
  PreparedStep step;
  step.temporaries.push_back(checked_product({args.parts, args.rows, args.targets, item}));
  const auto walks = static_cast<double>(args.rows) * static_cast<double>(args.trees);
  PreparedPhase sums = PreparedPhase::of(request.kernels.find("tree_sums"), args);
  const double workers = std::min(walks / static_cast<double>(kShareWalks), static_cast<double>(args.parts * blocks));
  sums.max_workers = static_cast<int>(std::clamp(workers, 1.0, 1048576.0));
  PreparedPhase scores = PreparedPhase::of(request.kernels.find("tree_scores"), args);
  scores.scratch_bytes = checked_product({args.columns, item});
  scores.max_workers = static_cast<int>(
      std::clamp(static_cast<double>(args.rows) * static_cast<double>(args.columns) / 2048.0, 1.0, 1048576.0));
  step.phases.push_back(std::move(sums));
  step.phases.push_back(std::move(scores));
  step.work = walks;
  return step;
}

}  // namespace

extern const OperationEntry trees_operations[] = {{"trees", prepare_trees}, {}};

}  // namespace engine
