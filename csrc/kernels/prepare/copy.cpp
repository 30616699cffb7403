// copy: input -> output, of equal size.
#include <algorithm>

#include "kernels/copy.hpp"
#include "kernels/prepare.hpp"

namespace engine {
namespace {

// Below this many bytes, a barrier costs more than a second core saves.
constexpr std::size_t kBytesPerWorker = std::size_t{32} << 10;

PreparedStep prepare_copy(const StepRequest& request) {
  request.expect_operands(1, 1);
  const std::size_t bytes = request.inputs[0];
  if (request.outputs[0] != bytes) {
    throw PlanError("the input has " + std::to_string(bytes) + " bytes, the output " +
                    std::to_string(request.outputs[0]) + "; expected as many bytes");
  }
  PreparedPhase phase =
      PreparedPhase::of(request.kernels.find("copy_bytes"), CopyArgs{static_cast<std::int64_t>(bytes)});
  phase.max_workers = static_cast<int>(std::min<std::size_t>(1024, 1 + bytes / kBytesPerWorker));
  PreparedStep step;
  step.phases.push_back(std::move(phase));
  return step;
}

}  // namespace

extern const OperationEntry copy_operations[] = {{"copy", prepare_copy}, {}};

}  // namespace engine
