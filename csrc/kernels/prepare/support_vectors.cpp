// support_vectors: x [rows, features], a machine -> scores [rows, columns], and the label of each row; see
// support_vectors.hpp. Attributes:
//
//   type, compute (ElementCode), rows, features, blocks, classes
//   kernel ("linear", "polynomial", "rbf", "sigmoid"), gamma, coef0, degree
//   mode ("sum", "sign", "vote", "probability")
#include "kernels/support_vectors.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestMachine = std::int64_t{1} << 32;
constexpr std::int64_t kMostClasses = 1 << 16;
constexpr std::int64_t kChunkElements = 1 << 16;  // of rows that stay in a core's cache
constexpr double kWorkerTerms = 1 << 16;          // features times vectors for which another worker is worthwhile

SupportArgs read_machine(const Attributes& attributes) {
  SupportArgs args = {};
  args.type =
      read_code(attributes, "type", {ElementCode::kF32, ElementCode::kF64, ElementCode::kI32, ElementCode::kI64});
  args.compute = read_code(attributes, "compute", {ElementCode::kF32, ElementCode::kF64});
  args.kernel = read_name<SupportKernel>(attributes, "kernel", {"linear", "polynomial", "rbf", "sigmoid"});
  args.mode = read_name<SupportMode>(attributes, "mode", {"sum", "sign", "vote", "probability"});
  args.gamma = attributes.real("gamma");
  args.coef0 = attributes.real("coef0");
  args.degree = attributes.integer("degree", 0, kLargestDegree);
  args.rows = attributes.integer("rows", 0, kLargestMachine);
  args.features = attributes.integer("features", 0, kLargestMachine);
  args.blocks = attributes.integer("blocks", 0, kLargestMachine);
  const bool is_sum = args.mode == SupportMode::kSum || args.mode == SupportMode::kSign;
  args.classes = attributes.integer("classes", is_sum ? 1 : 2, is_sum ? 1 : kMostClasses);
  args.coefficients = is_sum ? 1 : args.classes - 1;
  args.pairs = is_sum ? 1 : args.classes * (args.classes - 1) / 2;
  const std::int64_t margins = args.classes == 2 ? 2 : args.pairs;
  args.columns = is_sum ? 1 : args.mode == SupportMode::kProbability ? args.classes : margins;
  args.chunk =
      std::clamp<std::int64_t>(kChunkElements / std::max<std::int64_t>(args.features, 1), kRowGroup, kSupportChunk);
  return args;
}

PreparedStep prepare_support_vectors(const StepRequest& request) {
  const SupportArgs args = read_machine(request.attributes);
  const bool has_curves = args.mode == SupportMode::kProbability;
  const bool has_labels = has_curves || args.mode == SupportMode::kVote;
  const std::int64_t item = element_bytes(args.compute);
  request.expect_operands(5u + has_labels + has_curves, 1u + has_labels);
  request.expect_input(0, checked_product({args.rows, args.features, element_bytes(args.type)}));
  request.expect_input(1, checked_product({args.blocks, args.features, kRowBlock, item}));
  request.expect_input(2, checked_product({args.blocks, args.coefficients, kRowBlock, item}));
  request.expect_input(3, checked_product({args.classes, 4}));
  request.expect_input(4, checked_product({args.pairs, item}));
  if (has_labels) request.expect_input(5, checked_product({args.classes, 8}));
  if (has_curves) request.expect_input(6, checked_product({2, args.pairs, 8}));
  request.expect_output(0, checked_product({args.rows, args.columns, 4}));
  if (has_labels) request.expect_output(1, checked_product({args.rows, 8}));
  const SupportScratch sizes = support_scratch(args);
  PreparedStep step;
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("support_vectors"), args);
  const std::int64_t elements = sizes.rows + sizes.sums + sizes.partial + sizes.margins;
  phase.scratch_bytes = checked_add(checked_product({sizes.doubles, 8}), checked_product({elements, item}));
  const double terms = static_cast<double>(args.rows) * static_cast<double>(args.blocks * kRowBlock) *
                       static_cast<double>(args.features + args.coefficients);
  const double workers = std::min(terms / kWorkerTerms, static_cast<double>(args.rows));
  phase.max_workers = static_cast<int>(std::clamp(workers, 1.0, 1048576.0));
  step.phases.push_back(std::move(phase));
  step.work = 2 * terms;
  return step;
}

}  // namespace

extern const OperationEntry support_vectors_operations[] = {{"support_vectors", prepare_support_vectors}, {}};

}  // namespace engine
