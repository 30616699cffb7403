// linear_scores: x [rows, features], vectors -> scores [rows, columns], and the label of each row; see
// linear_scores.hpp. Attributes:
//
//   type, compute, result (ElementCode), rows, features, targets
//   complement ("none", "one", "negative"), transform ("none", "softmax", "logistic", "softmax_zero", "probit")
//   labels (0): whether they are given
#include "kernels/linear_scores.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestLinear = std::int64_t{1} << 32;
constexpr std::int64_t kChunkScores = 512;
constexpr double kShareProducts = 1 << 16;  // for which another worker is worthwhile

LinearScoreArgs read_linear(const Attributes& attributes) {
  LinearScoreArgs args = {};
  args.type =
      read_code(attributes, "type", {ElementCode::kF32, ElementCode::kF64, ElementCode::kI32, ElementCode::kI64});
  args.compute = read_code(attributes, "compute", {ElementCode::kF32, ElementCode::kF64});
  args.result = read_code(attributes, "result", {ElementCode::kF32, ElementCode::kF64});
  args.rows = attributes.integer("rows", 0, kLargestLinear);
  args.features = attributes.integer("features", 0, kLargestLinear);
  args.targets = attributes.integer("targets", 1, kLargestLinear);
  args.blocks = divide_up(args.targets, kRowBlock);
  args.complement = read_name<ScoreComplement>(attributes, "complement", {"none", "one", "negative"});
  args.transform =
      read_name<ScoreTransform>(attributes, "transform", {"none", "softmax", "logistic", "softmax_zero", "probit"});
  args.has_labels = attributes.flag("labels");
  const bool has_two = args.complement != ScoreComplement::kNone;
  if (has_two && args.targets != 1) throw PlanError("two scores are of one target");
  args.columns = has_two ? 2 : args.targets;
  args.chunk = std::max(kChunkScores / args.columns / kRowGroup, std::int64_t{1}) * kRowGroup;
  return args;
}

PreparedStep prepare_linear_scores(const StepRequest& request) {
  const LinearScoreArgs args = read_linear(request.attributes);
  const std::int64_t item = element_bytes(args.compute);
  request.expect_operands(3u + args.has_labels, 1u + args.has_labels);
  request.expect_input(0, checked_product({args.rows, args.features, element_bytes(args.type)}));
  request.expect_input(1, checked_product({args.blocks, args.features, kRowBlock, item}));
  request.expect_input(2, checked_product({args.blocks, kRowBlock, item}));
  if (args.has_labels) request.expect_input(3, checked_product({args.columns, 8}));
  request.expect_output(0, checked_product({args.rows, args.columns, element_bytes(args.result)}));
  if (args.has_labels) request.expect_output(1, checked_product({args.rows, 8}));
  PreparedStep step;
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("linear_scores"), args);
  const std::size_t products = checked_product({args.blocks, kRowGroup, kRowBlock, item});
  const std::size_t rows = checked_product({kRowGroup, args.features, item});
  const std::size_t scores = checked_multiply(checked_add(checked_product({args.chunk, args.columns}), kRowBlock),
                                              static_cast<std::size_t>(item));
  phase.scratch_bytes = checked_add(checked_add(products, rows), scores);
  const double work =
      static_cast<double>(args.rows) * static_cast<double>(args.targets) * static_cast<double>(args.features + 1);
  phase.max_workers = static_cast<int>(std::clamp(work / kShareProducts, 1.0, 1048576.0));
  step.phases.push_back(std::move(phase));
  step.work = 2 * work;
  return step;
}

}  // namespace

extern const OperationEntry linear_scores_operations[] = {{"linear_scores", prepare_linear_scores}, {}};

}  // namespace engine
