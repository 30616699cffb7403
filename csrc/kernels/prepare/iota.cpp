// iota: no input -> destination. Attributes:
//
//   type (ElementCode), count; start, step: integers, or first, delta: real numbers
#include "kernels/iota.hpp"

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

PreparedStep prepare_iota(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  using Code = ElementCode;
  const Attributes& attributes = request.attributes;
  IotaArgs args = {};
  args.type = read_code(attributes, "type", {Code::kF32, Code::kF64, Code::kI16, Code::kI32, Code::kI64});
  args.count = attributes.integer("count", 0, kLargest);
  if (args.type == Code::kF32 || args.type == Code::kF64) {
    args.first = attributes.real("first");
    args.delta = attributes.real("delta");
  } else {
    args.start = attributes.integer("start");
    args.step = attributes.integer("step");
  }
  const std::int64_t bytes = bytes_of({args.count}, element_bytes(args.type));
  request.expect_operands(0, 1);
  request.expect_output(0, static_cast<std::size_t>(bytes));
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("iota"), args);
  phase.max_workers = workers_for_bytes(static_cast<double>(bytes));
  return one_phase(std::move(phase), 0, 0);
}

}  // namespace

extern const OperationEntry iota_operations[] = {{"iota", prepare_iota}, {}};

}  // namespace engine
