// Plan building for reductions.
#include "kernels/reduce.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// Attributes: op (ReduceOp), type (ElementCode), shape, axes (ascending; none: each element separately). Output: the
// shape without the axes, in order. repeatable (0): an output has the same bits for any number of outputs. f32 and f64
// have every op; 32- and 64-bit integers have every op without a root or logarithm; the other types have kMax and kMin.
constexpr std::int64_t kLargestReduce = std::int64_t{1} << 46;
// The least number of elements for a worker, the least for a part, and the number of tiles that suffices for all
// workers.
constexpr std::int64_t kShareElements = 64 * 1024;
constexpr std::int64_t kPartElements = 16 * 1024;
constexpr std::int64_t kManyItems = 16;

ReduceMap map_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return ReduceMap::kMax;
    case ReduceOp::kMin:
      return ReduceMap::kMin;
    case ReduceOp::kProd:
      return ReduceMap::kMultiply;
    case ReduceOp::kL1:
      return ReduceMap::kAddAbs;
    case ReduceOp::kL2:
    case ReduceOp::kSumSquare:
      return ReduceMap::kAddSquare;
    case ReduceOp::kLogSumExp:
      return ReduceMap::kLogAddExp;
    default:
      return ReduceMap::kAdd;
  }
}

ReduceFinish finish_of(ReduceOp op) {
  return op == ReduceOp::kMean     ? ReduceFinish::kDivide
         : op == ReduceOp::kL2     ? ReduceFinish::kSquareRoot
         : op == ReduceOp::kLogSum ? ReduceFinish::kLog
                                   : ReduceFinish::kNone;
}

ElementCode read_type(const Attributes& attributes, ReduceOp op) {
  using Code = ElementCode;
  switch (op) {
    case ReduceOp::kMax:
    case ReduceOp::kMin:
      return read_code(
          attributes, "type",
          {Code::kF32, Code::kF64, Code::kI32, Code::kI64, Code::kU32, Code::kU64, Code::kU8, Code::kI8, Code::kBool});
    case ReduceOp::kL2:
    case ReduceOp::kLogSum:
    case ReduceOp::kLogSumExp:
      return read_code(attributes, "type", {Code::kF32, Code::kF64});
    default:
      return read_code(attributes, "type", {Code::kF32, Code::kF64, Code::kI32, Code::kI64, Code::kU32, Code::kU64});
  }
}

std::vector<bool> read_axes(const Attributes& attributes, std::size_t rank) {
  std::vector<bool> is_reduced(rank, false);
  std::int64_t previous = -1;
  for (const std::int64_t axis : attributes.integers("axes")) {
    if (axis <= previous || axis >= static_cast<std::int64_t>(rank)) {
      throw PlanError("attribute \"axes\" has the value " + std::to_string(axis) + "; expected ascending axes below " +
                      std::to_string(rank));
    }
    is_reduced[static_cast<std::size_t>(axis)] = true;
    previous = axis;
  }
  return is_reduced;
}

void append(ReduceDims& dims, std::int64_t size, std::int64_t stride) {
  if (dims.rank == kReduceDims)
    throw PlanError("the axes alternate too often between kept and reduced; expected " + std::to_string(kReduceDims) +
                    " runs of each at most");
  dims.size[dims.rank] = size;
  dims.stride[dims.rank++] = stride;
}

// Merges neighbouring axes of the same kind; the innermost kept axis becomes `columns`. If the step must be repeatable,
// a kept axis of one element counts as one of many.
void collapse(ReduceArgs& args, const std::vector<std::int64_t>& shape, const std::vector<bool>& is_reduced,
              bool is_repeatable) {
  struct Axis {
    std::int64_t size;
    bool is_reduced;
  };
  std::vector<Axis> axes;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1 && (is_reduced[d] || !is_repeatable)) continue;
    if (!axes.empty() && axes.back().is_reduced == is_reduced[d])
      axes.back().size *= shape[d];
    else
      axes.push_back({shape[d], is_reduced[d]});
  }
  args.columns = 1;
  args.has_columns = !axes.empty() && !axes.back().is_reduced;
  std::int64_t stride = 1;
  std::vector<std::int64_t> strides(axes.size());
  for (std::size_t d = axes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= axes[d].size;
  }
  if (args.has_columns) {
    args.columns = axes.back().size;
    axes.pop_back();
  }
  for (std::size_t d = 0; d < axes.size(); ++d)
    append(axes[d].is_reduced ? args.reduced : args.kept, axes[d].size, strides[d]);
  if (args.reduced.rank == 0) append(args.reduced, 1, 1);
}

std::int64_t product(const ReduceDims& dims) {
  std::int64_t count = 1;
  for (int d = 0; d < dims.rank; ++d) count *= dims.size[d];
  return count;
}

// The number of parts that each output's elements are divided into, so that several workers have work.
std::int64_t choose_parts(const ReduceArgs& args, std::int64_t elements) {
  const std::int64_t items = args.outputs * ((args.columns + kReduceTile - 1) / kReduceTile);
  if (args.type != ElementCode::kF32 || items == 0 || items >= kManyItems || elements < 4 * kPartElements) return 1;
  const std::int64_t wanted = std::min(elements / kPartElements, kManyItems) / items;
  return std::max<std::int64_t>(1, std::min(wanted, args.reduced.size[args.split]));
}

// The arguments that combine the parts of each output.
ReduceArgs second_phase(const ReduceArgs& first) {
  ReduceArgs args = {};
  args.type = first.type;
  const bool is_sum = first.map == ReduceMap::kAddAbs || first.map == ReduceMap::kAddSquare;
  args.map = is_sum ? ReduceMap::kAdd : first.map;
  args.finish = first.finish;
  append(args.kept, first.outputs, first.parts * first.columns);
  append(args.reduced, first.parts, first.columns);
  args.columns = first.columns;
  args.has_columns = first.has_columns;
  args.outputs = first.outputs;
  args.parts = 1;
  args.count = first.count;
  args.from = 2;
  args.to = 1;
  return args;
}

PreparedStep make_step(ReduceArgs args, std::int64_t elements, const KernelLookup& kernels) {
  const KernelEntry& kernel = kernels.find(args.type == ElementCode::kF32 ? "reduce_f32" : "reduce_integer");
  PreparedStep step;
  const auto add = [&](const ReduceArgs& phase, std::int64_t workers) {
    step.phases.push_back(PreparedPhase::of(kernel, phase));
    step.phases.back().max_workers = static_cast<int>(std::clamp<std::int64_t>(workers, 1, 1 << 20));
  };
  const std::int64_t workers = elements / kShareElements;
  if (args.parts == 1) {
    add(args, workers);
    return step;
  }
  const ReduceArgs last = second_phase(args);
  args.finish = ReduceFinish::kNone;
  args.to = 2;
  step.temporaries.push_back(checked_product({args.outputs, args.parts, args.columns, 4}));
  add(args, workers);
  add(last, 1);
  return step;
}

PreparedStep prepare_reduce(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const auto op = read_code<ReduceOp>(attributes, "op");
  ReduceArgs args = {};
  args.type = read_type(attributes, op);
  const std::vector<std::int64_t>& shape = attributes.integers("shape");
  const std::vector<bool> is_reduced = read_axes(attributes, shape.size());
  // The product of all nonzero sizes bounds every stride and count below.
  std::vector<std::int64_t> bound = shape, kept;
  for (std::int64_t& size : bound) size = size == 0 ? 1 : size;
  if (checked_product(bound) > static_cast<std::size_t>(kLargestReduce)) {
    throw PlanError("attribute \"shape\" has " + std::to_string(checked_product(bound)) + " elements; expected " +
                    std::to_string(kLargestReduce) + " at most");
  }
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (!is_reduced[d]) kept.push_back(shape[d]);
  const auto elements = static_cast<std::int64_t>(checked_product(shape));
  kept.push_back(element_bytes(args.type));
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({elements, element_bytes(args.type)}));
  request.expect_output(0, checked_product(kept));

  args.map = map_of(op);
  args.finish = finish_of(op);
  const bool is_repeatable = attributes.flag("repeatable");
  collapse(args, shape, is_reduced, is_repeatable);
  args.outputs = product(args.kept);
  args.count = product(args.reduced);
  args.split = static_cast<std::int32_t>(std::max_element(args.reduced.size, args.reduced.size + args.reduced.rank) -
                                         args.reduced.size);
  args.from = 0;
  args.to = 1;
  args.parts = is_repeatable ? 1 : choose_parts(args, elements);
  return make_step(args, elements, request.kernels);
}

}  // namespace

extern const OperationEntry reduce_operations[] = {{"reduce", prepare_reduce}, {}};

}  // namespace engine
