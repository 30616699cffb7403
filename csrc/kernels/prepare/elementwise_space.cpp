#include "kernels/prepare/elementwise_space.hpp"

#include <algorithm>

namespace engine {
namespace {

// Shorter strips cost as much in overhead as in work, so a strip then covers more than the innermost dimension.
constexpr std::int64_t kMinStrip = 256;

bool is_one_walk(const std::vector<std::int64_t>& dims, const std::vector<OperandStrides>& operands,
                 std::size_t outer) {
  return std::all_of(operands.begin(), operands.end(), [&](const OperandStrides& operand) {
    return operand.strides[outer] == operand.strides[outer + 1] * dims[outer + 1];
  });
}

}  // namespace

void merge_dimensions(std::vector<std::int64_t>& dims, std::vector<OperandStrides>& operands) {
  const auto erase = [&](std::size_t d) {
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d));
    for (OperandStrides& operand : operands)
      operand.strides.erase(operand.strides.begin() + static_cast<std::ptrdiff_t>(d));
  };
  for (std::size_t d = dims.size(); d-- > 0;) {
    if (dims[d] == 1) erase(d);
  }
  for (std::size_t d = dims.size(); d-- > 1;) {
    if (!is_one_walk(dims, operands, d - 1)) continue;
    dims[d] *= dims[d - 1];
    erase(d - 1);
  }
  if (dims.empty()) {
    dims.push_back(1);
    for (OperandStrides& operand : operands) operand.strides.push_back(0);
  }
}

StripPlan cut_strips(const std::vector<std::int64_t>& dims, std::int64_t largest) {
  StripPlan plan = {};
  ElementwiseArgs& args = plan.args;
  plan.level = static_cast<int>(dims.size()) - 1;
  args.unit = 1;
  while (plan.level > 0 && args.unit * dims[static_cast<std::size_t>(plan.level)] < kMinStrip)
    args.unit *= dims[static_cast<std::size_t>(plan.level--)];
  args.length = dims[static_cast<std::size_t>(plan.level)];
  const std::int64_t most = std::max<std::int64_t>(1, largest / args.unit);
  // Strips are about equal in size; if the units are elements, they are whole vectors.
  args.chunks = (args.length + most - 1) / most;
  args.chunk = (args.length + args.chunks - 1) / args.chunks;
  if (args.unit == 1) args.chunk = std::min(most, (args.chunk + 63) / 64 * 64);
  args.chunks = (args.length + args.chunk - 1) / args.chunk;
  args.outer_rank = plan.level;
  args.strips = args.chunks;
  for (int d = 0; d < plan.level; ++d) {
    args.outer[d] = dims[static_cast<std::size_t>(d)];
    args.strips *= args.outer[d];
  }
  return plan;
}

ElementwiseInput place_operand(const std::vector<std::int64_t>& dims, const OperandStrides& operand,
                               const StripPlan& plan) {
  ElementwiseInput input = {};
  input.bytes = operand.bytes;
  for (int d = 0; d < plan.level; ++d)
    input.outer_stride[d] = operand.strides[static_cast<std::size_t>(d)] * operand.bytes;
  const std::size_t level = static_cast<std::size_t>(plan.level);
  input.chunk_stride = operand.strides[level] * operand.bytes;
  // The box, from the innermost dimension outwards, merged for this operand only; the chunked dimension counts as one
  // unit.
  std::vector<std::int64_t> extents, strides;
  for (std::size_t d = dims.size(); d-- > level;) {
    const std::int64_t extent = d == level ? 1 : dims[d], stride = operand.strides[d] * operand.bytes;
    if (!extents.empty() && stride == strides.back() * extents.back())
      extents.back() *= extent;
    else {
      extents.push_back(extent);
      strides.push_back(stride);
    }
  }
  input.box_rank = static_cast<std::int32_t>(extents.size());
  std::reverse_copy(extents.begin(), extents.end(), input.extents);
  std::reverse_copy(strides.begin(), strides.end(), input.strides);
  const bool is_run = input.box_rank == 1;
  input.form = is_run && input.strides[0] == operand.bytes ? OperandForm::kDirect
               : is_run && input.strides[0] == 0           ? OperandForm::kUniform
                                                           : OperandForm::kExpanded;
  return input;
}

}  // namespace engine
