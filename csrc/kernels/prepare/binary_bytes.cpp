// Plan building for sums and products of 8-bit tensors. Attributes: those of requantize_request.hpp, and
//
//   outer, pixels, lanes (1 or 16): the sizes             product (0): a product, else a sum
//   b_repeated (0): B is the same for all pixels          a_scale, b_scale (1): factors to units of y; of a product,
//   the a_zero_point, b_zero_point (0): as u8                   first one's only a_signed, b_signed (0): whether the
//   operand is i8
#include "kernels/binary_bytes.hpp"

#include <cmath>

#include "kernels/prepare/norm_request.hpp"
#include "kernels/prepare/requantize_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kWorkerElements = 16 * 1024;

float read_scale(const Attributes& attributes, const char* name) {
  const float scale = static_cast<float>(attributes.real_or(name, 1));
  if (!std::isfinite(scale)) throw PlanError("attribute \"" + std::string(name) + "\" is not a finite number");
  return scale;
}

float read_zero_point(const Attributes& attributes, const char* name) {
  return static_cast<float>(attributes.integer_or(name, 0, 255, 0));
}

PreparedStep prepare_binary_bytes(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  BinaryBytesArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestSize);
  args.pixels = attributes.integer("pixels", 0, kLargestSize);
  args.lanes = attributes.integer("lanes", 1, 16);
  if (args.lanes != 1 && args.lanes != 16) throw PlanError("attribute \"lanes\" is neither 1 nor 16");
  args.requantize = read_requantize(attributes);
  if (args.requantize.y == ElementCode::kI32 || args.requantize.epilogue.activation != Activation::kClip) {
    throw PlanError("attribute \"y\" is i32, or \"activation\" is not clip");
  }
  args.is_product = attributes.flag("product");
  args.is_b_repeated = attributes.flag("b_repeated");
  args.a_scale = read_scale(attributes, "a_scale");
  args.b_scale = read_scale(attributes, "b_scale");
  args.a_zero_point = read_zero_point(attributes, "a_zero_point");
  args.b_zero_point = read_zero_point(attributes, "b_zero_point");
  args.a_flip = attributes.flag("a_signed") ? 128 : 0;
  args.b_flip = attributes.flag("b_signed") ? 128 : 0;
  const std::size_t count = checked_product({args.outer, args.pixels, args.lanes});
  request.expect_operands(2, 1);
  request.expect_input(0, count);
  request.expect_input(1, args.is_b_repeated ? checked_product({args.outer, args.lanes}) : count);
  request.expect_output(0, checked_multiply(count, static_cast<std::size_t>(element_bytes_of(args.requantize.y))));
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("binary_bytes"), args));
  limit_workers(step.phases.back(), static_cast<std::int64_t>(count) / kWorkerElements + 1);
  return step;
}

}  // namespace

extern const OperationEntry binary_bytes_operations[] = {{"binary_bytes", prepare_binary_bytes, true}, {}};

}  // namespace engine
