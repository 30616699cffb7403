#include "kernels/prepare/requantize_request.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

// Rounding to integers in vectors is exact below this.
constexpr double kLargestCode = 1 << 22;

float read_finite(const char* name, double value) {
  const float number = static_cast<float>(value);
  if (!std::isfinite(number)) {
    throw PlanError(std::string("attribute \"") + name + "\" is " + std::to_string(value) +
                    "; expected a finite number");
  }
  return number;
}

}  // namespace

RequantizeArgs read_requantize(const Attributes& attributes) {
  using Code = ElementCode;
  RequantizeArgs args;
  args.epilogue = read_epilogue(attributes);
  if (attributes.has("y")) args.y = read_code<Code>(attributes, "y", {Code::kU8, Code::kI8, Code::kI32, Code::kF32});
  if (attributes.has("residual_type"))
    args.residual = read_code<Code>(attributes, "residual_type", {Code::kU8, Code::kI8, Code::kF32});
  args.factor = read_finite("factor", attributes.real_or("factor", 1));
  args.residual_zero_point = static_cast<float>(attributes.integer_or("residual_zero_point", -128, 255, 0));
  args.residual_scale = read_finite("residual_scale", attributes.real_or("residual_scale", 1));
  if (attributes.has("middle")) {
    const std::vector<double> middle = attributes.reals("middle");
    if (middle.size() != 3 || !(middle[0] <= middle[1]) || !(std::max(-middle[0], middle[1]) < kLargestCode)) {
      throw PlanError("attribute \"middle\" is not a low and a high code within 2^22, and a scale");
    }
    args.has_middle = true;
    args.middle_low = static_cast<float>(middle[0]);
    args.middle_high = static_cast<float>(middle[1]);
    args.middle_scale = read_finite("middle", middle[2]);
  }
  if (args.y != Code::kU8 && args.y != Code::kI8) return args;
  const std::int64_t low = args.y == Code::kU8 ? 0 : -128;
  args.zero_point = static_cast<std::int32_t>(attributes.integer_or("zero_point", low, low + 255, 0));
  args.low = static_cast<float>(low - args.zero_point);
  args.high = static_cast<float>(low + 255 - args.zero_point);
  if (args.epilogue.activation == Activation::kClip) {
    args.low = std::min(std::max(args.low, args.epilogue.alpha), args.high);
    args.high = std::max(std::min(args.high, args.epilogue.beta), args.low);
  }
  return args;
}

bool read_pairs_fit(const Attributes& attributes) {
  return attributes.flag("pairs_fit");
}

std::uint8_t read_input_zero_point(const Attributes& attributes) {
  return static_cast<std::uint8_t>(attributes.integer_or("x_zero_point", 0, 255, 0));
}

}  // namespace engine
