// Plan building for local response normalization.
#include "kernels/lrn.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

LrnPower power_of(double beta) {
  if (beta == 0.5) return LrnPower::kHalf;
  if (beta == 0.75) return LrnPower::kThreeQuarters;
  return beta == 1.0 ? LrnPower::kOne : LrnPower::kGeneral;
}

float read_finite(const Attributes& attributes, const char* name) {
  const double value = attributes.real(name);
  if (!std::isfinite(value)) throw PlanError("attribute \"" + std::string(name) + "\" is not finite");
  return static_cast<float>(value);
}

// Attributes: batch, channels, pixels: the sizes; blocked (0): maps are NCHWc16; size: channels of the window; alpha,
// beta, bias.
PreparedStep prepare_lrn_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  LrnArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargestSize);
  args.channels = attributes.integer("channels", 0, kLargestSize);
  args.pixels = attributes.integer("pixels", 0, kLargestSize);
  const std::int64_t size = attributes.integer("size", 1, kLargestSize);
  args.alpha = static_cast<float>(read_finite(attributes, "alpha") / static_cast<double>(size));
  args.beta = read_finite(attributes, "beta");
  args.bias = read_finite(attributes, "bias");
  args.power = power_of(args.beta);
  const bool is_blocked = attributes.flag("blocked");
  const std::int64_t stored_channels = (args.channels + 15) / 16 * 16;
  const std::size_t bytes = float_bytes({args.batch, is_blocked ? stored_channels : args.channels, args.pixels});
  request.expect_operands(1, 1);
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  if (bytes == 0) args.batch = 0;

  // A window ends at the first and the last channel.
  args.before = std::min((size - 1) / 2, args.channels);
  args.after = std::min(size / 2, args.channels);
  args.lead = (args.before + 15) / 16 * 16;
  args.row = args.lead + stored_channels + (args.after + 15) / 16 * 16;
  PreparedStep step;
  step.phases.push_back(
      PreparedPhase::of(request.kernels.find(is_blocked ? "lrn_blocked_f32" : "lrn_plain_f32"), args));
  if (is_blocked && bytes != 0) step.phases.back().scratch_bytes = float_bytes({kLrnTile, args.row});
  limit_workers(step.phases.back(), args.batch * ((args.pixels + kLrnRun - 1) / kLrnRun));
  return step;
}

}  // namespace

extern const OperationEntry lrn_operations[] = {{"lrn_f32", prepare_lrn_f32}, {}};

}  // namespace engine
