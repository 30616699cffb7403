// Plan building for conversions between layouts and between f32 and bf16. Attributes: batch, channels, pixels; for
// convert_f32_bf16 and convert_bf16_f32, which keep the layout: count.
#include "kernels/layout.hpp"

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestLayout = std::int64_t{1} << 30;

PreparedStep prepare_layout(const StepRequest& request, const char* kernel, bool to_blocked, std::int64_t from_bytes,
                            std::int64_t to_bytes) {
  LayoutArgs args = {};
  args.batch = request.attributes.integer("batch", 0, kLargestLayout);
  args.channels = request.attributes.integer("channels", 0, kLargestLayout);
  args.pixels = request.attributes.integer("pixels", 0, kLargestLayout);
  args.plain_batch = args.channels * args.pixels;
  args.blocked_batch = (args.channels + 15) / 16 * 16 * args.pixels;
  const auto bytes = [&](bool is_blocked, std::int64_t element) {
    return is_blocked ? blocked_bytes(args.batch, args.channels, args.pixels, 1, element)
                      : checked_product({args.batch, args.channels, args.pixels, element});
  };
  request.expect_operands(1, 1);
  request.expect_input(0, bytes(!to_blocked, from_bytes));
  request.expect_output(0, bytes(to_blocked, to_bytes));
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args), 0, 0);
}

PreparedStep prepare_convert(const StepRequest& request, const char* kernel, std::int64_t from_bytes,
                             std::int64_t to_bytes) {
  ConvertArgs args = {};
  args.count = request.attributes.integer("count", 0, std::int64_t{1} << 46);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({args.count, from_bytes}));
  request.expect_output(0, checked_product({args.count, to_bytes}));
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args), 0, 0);
}

PreparedStep prepare_to_blocked_f32(const StepRequest& request) {
  return prepare_layout(request, "to_blocked_f32", true, 4, 4);
}
PreparedStep prepare_from_blocked_f32(const StepRequest& request) {
  return prepare_layout(request, "from_blocked_f32", false, 4, 4);
}
PreparedStep prepare_to_blocked_bf16(const StepRequest& request) {
  return prepare_layout(request, "to_blocked_bf16", true, 2, 2);
}
PreparedStep prepare_from_blocked_bf16(const StepRequest& request) {
  return prepare_layout(request, "from_blocked_bf16", false, 2, 2);
}
PreparedStep prepare_to_blocked_f32_bf16(const StepRequest& request) {
  return prepare_layout(request, "to_blocked_f32_bf16", true, 4, 2);
}
PreparedStep prepare_from_blocked_bf16_f32(const StepRequest& request) {
  return prepare_layout(request, "from_blocked_bf16_f32", false, 2, 4);
}
PreparedStep prepare_to_blocked_bf16_f32(const StepRequest& request) {
  return prepare_layout(request, "to_blocked_bf16_f32", true, 2, 4);
}
PreparedStep prepare_from_blocked_f32_bf16(const StepRequest& request) {
  return prepare_layout(request, "from_blocked_f32_bf16", false, 4, 2);
}
PreparedStep prepare_to_blocked_byte(const StepRequest& request) {
  return prepare_layout(request, "to_blocked_byte", true, 1, 1);
}
PreparedStep prepare_from_blocked_byte(const StepRequest& request) {
  return prepare_layout(request, "from_blocked_byte", false, 1, 1);
}
PreparedStep prepare_convert_f32_bf16(const StepRequest& request) {
  return prepare_convert(request, "convert_f32_bf16", 4, 2);
}
PreparedStep prepare_convert_bf16_f32(const StepRequest& request) {
  return prepare_convert(request, "convert_bf16_f32", 2, 4);
}

}  // namespace

extern const OperationEntry layout_operations[] = {{"to_blocked_f32", prepare_to_blocked_f32},
                                                   {"from_blocked_f32", prepare_from_blocked_f32},
                                                   {"to_blocked_bf16", prepare_to_blocked_bf16},
                                                   {"from_blocked_bf16", prepare_from_blocked_bf16},
                                                   {"to_blocked_f32_bf16", prepare_to_blocked_f32_bf16},
                                                   {"from_blocked_bf16_f32", prepare_from_blocked_bf16_f32},
                                                   {"to_blocked_bf16_f32", prepare_to_blocked_bf16_f32},
                                                   {"from_blocked_f32_bf16", prepare_from_blocked_f32_bf16},
                                                   {"to_blocked_byte", prepare_to_blocked_byte},
                                                   {"from_blocked_byte", prepare_from_blocked_byte},
                                                   {"convert_f32_bf16", prepare_convert_f32_bf16},
                                                   {"convert_bf16_f32", prepare_convert_bf16_f32},
                                                   {}};

}  // namespace engine
