// Plan building for average pooling of 8-bit maps. Attributes: as for average_pool_f32 without steps between images, as
// in requantize_request.hpp, and
//
//   scale: the factor from codes of x to units of y     x_zero_point (0): of x, as u8
//   x_signed (0): whether x is i8
#include "kernels/average_bytes.hpp"

#include <cmath>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/requantize_request.hpp"

namespace engine {
namespace {

// Sums of more bytes may overflow 32 bits.
constexpr std::int64_t kMaxTaps = INT32_MAX / 255;

PreparedStep prepare_average_pool_bytes(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const ConvShape shape = read_conv_shape(attributes);
  if (shape.in_channels != shape.out_channels) throw PlanError("pooling does not change the number of channels");
  if (checked_product({shape.in_h, shape.in_w}) > kMaxTaps) {
    throw PlanError("a map of " + std::to_string(shape.in_h) + " x " + std::to_string(shape.in_w) +
                    " pixels has sums that overflow 32 bits");
  }
  const std::vector<std::int64_t> pads =
      attributes.has("pads") ? attributes.integers("pads") : std::vector<std::int64_t>(4, 0);
  AverageBytesArgs args = {};
  args.pool = make_pool_args(shape, attributes.flag("count_include_pad"), pads[2], pads[3]);
  args.requantize = read_requantize(attributes);
  args.scale = static_cast<float>(attributes.real("scale"));
  if (!std::isfinite(args.scale)) throw PlanError("attribute \"scale\" is not a finite number");
  args.zero_point = read_input_zero_point(attributes);
  args.flip = attributes.flag("x_signed") ? 128 : 0;
  if (args.requantize.y == ElementCode::kI32) throw PlanError("attribute \"y\" is i32; expected u8, i8 or f32");
  request.expect_operands(1, 1);
  request.expect_input(0, blocked_bytes(shape.batch, shape.in_channels, shape.in_h, shape.in_w, 1));
  request.expect_output(
      0, blocked_bytes(shape.batch, shape.in_channels, shape.out_h, shape.out_w, element_bytes_of(args.requantize.y)));
  return one_phase(PreparedPhase::of(request.kernels.find("average_pool_bytes"), args), 0, 0);
}

}  // namespace

extern const OperationEntry average_bytes_operations[] = {{"average_pool_bytes", prepare_average_pool_bytes}, {}};

}  // namespace engine
