// Plan building for GroupNormalization.
#include "kernels/group_norm.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// From this number, units are divided evenly among workers; fewer units are divided by pixels, unless they are small.
constexpr std::int64_t kManyUnits = 16;
constexpr std::int64_t kSmallFloats = 32768;

// Attributes: batch, channels, pixels: the sizes; groups; blocked (0): maps are NCHWc16; spans_batch (0): one mean for
// all images; epsilon; deviation_epsilon (0); scale, bias (0): whether the operand, of `channels` floats, is present;
// repeatable (0): an image has the same bits for any batch. y may share the memory of x.
PreparedStep prepare_group_norm_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  GroupNormArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargestSize);
  args.channels = attributes.integer("channels", 1, kLargestSize);
  args.pixels = attributes.integer("pixels", 0, kLargestSize);
  args.groups = attributes.integer("groups", 1, args.channels);
  args.epsilon = read_epsilon(attributes, "epsilon");
  args.deviation_epsilon = read_epsilon_or(attributes, "deviation_epsilon", 0.0f);
  args.has_scale = attributes.flag("scale");
  args.has_bias = attributes.flag("bias");
  args.is_blocked = attributes.flag("blocked");
  args.spans_batch = attributes.flag("spans_batch") && args.batch > 1;
  if (args.channels % args.groups != 0) {
    throw PlanError(std::to_string(args.channels) + " channels are not divisible into " + std::to_string(args.groups) +
                    " groups");
  }
  const std::int64_t stored_channels = (args.channels + 15) / 16 * 16;
  const std::size_t bytes = float_bytes({args.batch, args.is_blocked ? stored_channels : args.channels, args.pixels});
  request.expect_operands(1 + std::size_t{args.has_scale} + args.has_bias, 1);
  std::size_t input = 0;
  request.expect_input(input++, bytes);
  if (args.has_scale) request.expect_input(input++, float_bytes({args.channels}));
  if (args.has_bias) request.expect_input(input++, float_bytes({args.channels}));
  request.expect_output(0, bytes);
  if (bytes == 0) args.batch = 0;

  args.chunk = args.is_blocked ? kGroupNormBlockedChunk : kGroupNormPlainChunk;
  args.chunks = (args.pixels + args.chunk - 1) / args.chunk;
  const std::int64_t size = args.channels / args.groups;
  args.unit = args.is_blocked ? std::min(std::lcm<std::int64_t>(size, 16), stored_channels) : size;
  const std::int64_t units = args.batch * ((args.channels + args.unit - 1) / args.unit);
  const bool is_small = bytes < kSmallFloats * sizeof(float), is_repeatable = attributes.flag("repeatable");
  PreparedStep step;
  if (args.spans_batch || (units < kManyUnits && !is_small && !is_repeatable)) {
    step.temporaries.push_back(float_bytes({args.batch, stored_channels / 16, args.chunks, 32}));
    step.temporaries.push_back(float_bytes({args.batch, group_norm_coefficients(args.channels)}));
    for (const char* phase : {"group_norm_moments_f32", "group_norm_combine_f32", "group_norm_apply_f32"})
      step.phases.push_back(PreparedPhase::of(request.kernels.find(phase), args));
    limit_workers(step.phases[1], args.spans_batch ? args.groups : args.batch * args.groups);
    return step;
  }
  step.phases.push_back(PreparedPhase::of(request.kernels.find("group_norm_f32"), args));
  if (bytes != 0) {
    step.phases.back().scratch_bytes =
        float_bytes({group_norm_moments(args, args.unit) + group_norm_coefficients(args.unit)});
  }
  limit_workers(step.phases.back(), units);
  return step;
}

}  // namespace

extern const OperationEntry group_norm_operations[] = {{"group_norm_f32", prepare_group_norm_f32, true}, {}};

}  // namespace engine
