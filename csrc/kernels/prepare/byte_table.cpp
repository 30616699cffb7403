// Plan building for table lookups. Attributes: count: the number of bytes.
#include "kernels/byte_table.hpp"

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kWorkerBytes = 16 * 1024;

PreparedStep prepare_byte_table(const StepRequest& request) {
  ByteTableArgs args = {};
  args.count = request.attributes.integer("count", 0, kLargestSize);
  request.expect_operands(2, 1);
  request.expect_input(0, checked_product({args.count}));
  request.expect_input(1, 256);
  request.expect_output(0, checked_product({args.count}));
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("byte_table"), args));
  limit_workers(step.phases.back(), (args.count + kWorkerBytes - 1) / kWorkerBytes);
  return step;
}

}  // namespace

extern const OperationEntry byte_table_operations[] = {{"byte_table", prepare_byte_table, true}, {}};

}  // namespace engine
