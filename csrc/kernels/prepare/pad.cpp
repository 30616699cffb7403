// pad: source -> destination. fill: -> destination. trilu: source -> destination.
//
// pad    element_bytes, shape (of the source), pads (rank leading, then rank trailing values; negative: removes
//        elements), mode (PadMode), value (0: the constant's bits)
// fill   element_bytes, value
// trilu  element_bytes, matrices, rows, columns, diagonal, upper (0 or 1)
#include "kernels/pad.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

struct PadDim {
  std::int64_t in, out, begin;
  std::int64_t first = 0, kept = in;  // the part of the source that is padded
};

// Modes other than constant repeat the elements that negative pads leave; with a constant, this makes no difference.
PadDim cut_of(PadDim dim) {
  const std::int64_t end = dim.out - dim.in - dim.begin;
  dim.first = std::max<std::int64_t>(0, -dim.begin);
  dim.kept = dim.in - dim.first - std::max<std::int64_t>(0, -end);
  dim.begin = std::max<std::int64_t>(0, dim.begin);
  return dim;
}

std::vector<PadDim> read_pad_dims(const Attributes& attributes, PadMode mode, std::int64_t element) {
  const auto shape = read_shape(attributes, "shape", -1, kMaxPadDims);
  const auto& pads = attributes.integers("pads");
  const std::size_t rank = shape.size();
  if (pads.size() != 2 * rank) {
    throw PlanError("attribute \"pads\" has " + std::to_string(pads.size()) + " values; expected " +
                    std::to_string(2 * rank));
  }
  constexpr std::int64_t kLargest = std::int64_t{1} << 60;
  std::vector<PadDim> dims;
  std::vector<std::int64_t> out;
  for (std::size_t d = 0; d < rank; ++d) {
    for (const std::int64_t pad : {pads[d], pads[rank + d], shape[d]}) {
      if (pad > kLargest || pad < -kLargest) throw PlanError("a pad of " + std::to_string(pad) + " overflows");
    }
    out.push_back(shape[d] + pads[d] + pads[rank + d]);
    if (out.back() < 0) {
      throw PlanError("pads " + std::to_string(pads[d]) + " and " + std::to_string(pads[rank + d]) +
                      " leave nothing of dimension " + std::to_string(d) + " of " + std::to_string(shape[d]));
    }
    const PadDim dim = {shape[d], out.back(), pads[d]};
    dims.push_back(mode == PadMode::kConstant ? dim : cut_of(dim));
    if (mode != PadMode::kConstant && dims.back().kept <= 0 && out.back() > 0) {
      throw PlanError("no element is left in dimension " + std::to_string(d) + "; only mode \"constant\" can pad it");
    }
  }
  bytes_of(out, element);
  return dims;
}

// Dimensions without pads are merged into the previous one, trailing ones into the block.
PadArgs make_pad_args(const std::vector<PadDim>& dims, PadMode mode, std::int64_t element) {
  PadArgs args = {};
  args.mode = mode;
  args.block = element;
  std::vector<PadDim> kept;  // in reverse order
  std::int64_t inner = 1;    // of the dimensions without pads that precede the last of `kept`
  const auto is_whole = [](const PadDim& dim) { return dim.begin == 0 && dim.kept == dim.out && dim.in == dim.out; };
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    if (is_whole(*dim) && kept.empty()) {
      args.block *= dim->in;
    } else if (is_whole(*dim)) {
      inner *= dim->in;
    } else {
      if (inner != 1) kept.push_back({inner, inner, 0});
      inner = 1;
      kept.push_back(*dim);
    }
  }
  if (inner != 1 || kept.empty()) kept.push_back({inner, inner, 0});
  args.rank = static_cast<std::int32_t>(kept.size());
  args.rows = 1;
  std::int64_t stride = args.block;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::size_t d = kept.size() - 1 - i;
    args.in[d] = kept[i].kept;
    args.out[d] = kept[i].out;
    args.begin[d] = kept[i].begin;
    args.stride[d] = stride;
    args.skip += kept[i].first * stride;
    stride *= kept[i].in;
    if (i > 0) args.rows *= kept[i].out;
  }
  if (args.block * args.out[args.rank - 1] == 0) args.rows = 0;
  return args;
}

PreparedStep prepare_pad(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const std::int64_t element = read_element_bytes(attributes);
  const auto mode = read_code<PadMode>(attributes, "mode");
  const std::vector<PadDim> dims = read_pad_dims(attributes, mode, element);
  PadArgs args = make_pad_args(dims, mode, element);
  args.pattern = read_pattern(attributes, element);
  std::vector<std::int64_t> in, out;
  for (const PadDim& dim : dims) {
    in.push_back(dim.in);
    out.push_back(dim.out);
  }
  const auto out_bytes = static_cast<std::size_t>(bytes_of(out, element));
  request.expect_operands(1, 1);
  request.expect_input(0, static_cast<std::size_t>(bytes_of(in, element)));
  request.expect_output(0, out_bytes);
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("pad"), args);
  phase.max_workers = workers_for_bytes(static_cast<double>(out_bytes));
  return one_phase(std::move(phase), 0, 0);
}

PreparedStep prepare_fill(const StepRequest& request) {
  const std::int64_t element = read_element_bytes(request.attributes);
  request.expect_operands(0, 1);
  const std::size_t bytes = request.outputs[0];
  if (bytes % static_cast<std::size_t>(element) != 0) {
    throw PlanError("the output has " + std::to_string(bytes) + " bytes; expected a multiple of " +
                    std::to_string(element));
  }
  const FillArgs args = {static_cast<std::int64_t>(bytes), read_pattern(request.attributes, element)};
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("fill"), args);
  phase.max_workers = workers_for_bytes(static_cast<double>(bytes));
  return one_phase(std::move(phase), 0, 0);
}

PreparedStep prepare_trilu(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  const Attributes& attributes = request.attributes;
  TriluArgs args = {};
  args.element = read_element_bytes(attributes);
  args.matrices = attributes.integer("matrices", 0, kLargest);
  args.rows = attributes.integer("rows", 0, kLargest);
  args.columns = attributes.integer("columns", 0, kLargest);
  args.diagonal = std::clamp(attributes.integer("diagonal"), -kLargest, kLargest);
  args.upper = attributes.integer("upper", 0, 1);
  const auto bytes = static_cast<std::size_t>(bytes_of({args.matrices, args.rows, args.columns}, args.element));
  request.expect_operands(1, 1);
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("trilu"), args);
  phase.max_workers = workers_for_bytes(static_cast<double>(bytes));
  return one_phase(std::move(phase), 0, 0);
}

}  // namespace

extern const OperationEntry pad_operations[] = {
    {"pad", prepare_pad}, {"fill", prepare_fill}, {"trilu", prepare_trilu}, {}};

}  // namespace engine
