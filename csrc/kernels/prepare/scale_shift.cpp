// Plan building for BatchNormalization at inference.
#include "kernels/scale_shift.hpp"

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// Attributes: batch, channels, pixels: the sizes; blocked (0): maps are NCHWc16; bf16 (0): maps are bf16; activation
// (clip), alpha (-inf), beta (inf): see EpilogueArgs. y may share the memory of x.
PreparedStep prepare_scale_shift_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ScaleShiftArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargestSize);
  args.channels = attributes.integer("channels", 0, kLargestSize);
  args.pixels = attributes.integer("pixels", 0, kLargestSize);
  args.epilogue = read_epilogue(attributes);
  const bool is_blocked = attributes.flag("blocked");
  const std::int64_t stored_channels = is_blocked ? (args.channels + 15) / 16 * 16 : args.channels;
  const bool is_bf16 = attributes.flag("bf16");
  if (is_bf16 && !is_blocked) throw PlanError("attribute \"bf16\" is 1 for plain maps; expected blocked ones");
  const std::size_t bytes = float_bytes({args.batch, stored_channels, args.pixels}) / (is_bf16 ? 2 : 1);
  request.expect_operands(3, 1);
  request.expect_input(0, bytes);
  request.expect_input(1, float_bytes({args.channels}));
  request.expect_input(2, float_bytes({args.channels}));
  request.expect_output(0, bytes);
  if (bytes == 0) args.batch = 0;
  const char* kernel = is_bf16      ? "scale_shift_blocked_bf16"
                       : is_blocked ? "scale_shift_blocked_f32"
                                    : "scale_shift_plain_f32";
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args), 0, 0);
}

}  // namespace

extern const OperationEntry scale_shift_operations[] = {{"scale_shift_f32", prepare_scale_shift_f32, true}, {}};

}  // namespace engine
