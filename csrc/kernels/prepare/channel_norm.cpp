// Plan building for the normalization over channels.
#include "kernels/channel_norm.hpp"

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// Attributes: batch, channels, pixels: the sizes; blocked (0): maps are NCHWc16; epsilon; deviation_epsilon (0); scale,
// bias (0): whether the operand, of `channels` floats, is present. y may share the memory of x.
PreparedStep prepare_channel_norm_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ChannelNormArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargestSize);
  args.channels = attributes.integer("channels", 0, kLargestSize);
  args.pixels = attributes.integer("pixels", 0, kLargestSize);
  args.epsilon = read_epsilon(attributes, "epsilon");
  args.deviation_epsilon = read_epsilon_or(attributes, "deviation_epsilon", 0.0f);
  args.has_scale = attributes.flag("scale");
  args.has_bias = attributes.flag("bias");
  const bool is_blocked = attributes.flag("blocked");
  const std::int64_t stored_channels = is_blocked ? (args.channels + 15) / 16 * 16 : args.channels;
  const std::size_t bytes = float_bytes({args.batch, stored_channels, args.pixels});
  request.expect_operands(1 + std::size_t{args.has_scale} + args.has_bias, 1);
  std::size_t input = 0;
  request.expect_input(input++, bytes);
  if (args.has_scale) request.expect_input(input++, float_bytes({args.channels}));
  if (args.has_bias) request.expect_input(input++, float_bytes({args.channels}));
  request.expect_output(0, bytes);

  const char* kernel = is_blocked ? "channel_norm_blocked_f32" : "channel_norm_plain_f32";
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
  limit_workers(step.phases.back(), args.batch * ((args.pixels + kChannelNormRun - 1) / kChannelNormRun));
  return step;
}

}  // namespace

extern const OperationEntry channel_norm_operations[] = {{"channel_norm_f32", prepare_channel_norm_f32, true}, {}};

}  // namespace engine
