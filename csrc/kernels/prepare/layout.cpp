// Plan-time half of the conversion between layouts. Attributes: batch, channels, pixels.
#include "kernels/layout.hpp"

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

PreparedStep prepare_layout(const StepRequest& request, const char* kernel, bool to_blocked) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  LayoutArgs args = {};
  args.batch = request.attributes.integer("batch", 0, kLargest);
  args.channels = request.attributes.integer("channels", 0, kLargest);
  args.pixels = request.attributes.integer("pixels", 0, kLargest);
  args.plain_batch = args.channels * args.pixels;
  args.blocked_batch = (args.channels + 15) / 16 * 16 * args.pixels;
  const std::size_t plain = checked_product({args.batch, args.channels, args.pixels, 4});
  const std::size_t blocked = blocked_bytes(args.batch, args.channels, args.pixels, 1);
  request.expect_operands(1, 1);
  request.expect_input(0, to_blocked ? plain : blocked);
  request.expect_output(0, to_blocked ? blocked : plain);
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args), 0, 0);
}

PreparedStep prepare_to_blocked_f32(const StepRequest& request) {
  return prepare_layout(request, "to_blocked_f32", true);
}
PreparedStep prepare_from_blocked_f32(const StepRequest& request) {
  return prepare_layout(request, "from_blocked_f32", false);
}

}  // namespace

extern const OperationEntry layout_operations[] = {
    {"to_blocked_f32", prepare_to_blocked_f32}, {"from_blocked_f32", prepare_from_blocked_f32}, {}};

}  // namespace engine
