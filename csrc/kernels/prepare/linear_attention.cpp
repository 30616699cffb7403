// linear_attention_f32: query, key, value, [past], [decay], [beta] -> output, present. Attributes:
//
//   batch, tokens, heads, group, keys, values: see linear_attention.hpp
//   decays, betas, past (0): which operands are given; scale
#include "kernels/linear_attention.hpp"

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

PreparedStep prepare_linear_attention_f32(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  const Attributes& attributes = request.attributes;
  LinearAttentionArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargest);
  args.tokens = attributes.integer("tokens", 0, kLargest);
  args.heads = attributes.integer("heads", 1, 1 << 20);
  args.group = attributes.integer("group", 1, 1 << 20);
  args.keys = attributes.integer("keys", 0, 1 << 20);
  args.values = attributes.integer("values", 0, 1 << 20);
  args.decays = attributes.integer_or("decays", 0, 1 << 20, 0);
  if (args.decays > 1 && args.decays != args.keys) {
    throw PlanError("attribute \"decays\" is " + std::to_string(args.decays) + "; expected 0, 1 or " +
                    std::to_string(args.keys));
  }
  args.betas = attributes.integer_or("betas", 0, 1 << 20, 0);
  if (args.betas > 1 && args.betas != args.heads) {
    throw PlanError("attribute \"betas\" is " + std::to_string(args.betas) + "; expected 0, 1 or " +
                    std::to_string(args.heads));
  }
  args.has_past = static_cast<std::int32_t>(attributes.integer_or("past", 0, 1, 0));
  args.scale = static_cast<float>(attributes.real("scale"));
  const std::size_t inputs = 3u + static_cast<std::size_t>(args.has_past) + (args.decays > 0) + (args.betas > 0);
  request.expect_operands(inputs, 2);
  const auto expect = [&](std::size_t index, const std::vector<std::int64_t>& shape) {
    request.expect_input(index, static_cast<std::size_t>(bytes_of(shape, 4)));
  };
  const std::vector<std::int64_t> state = {args.batch, args.heads, args.keys, args.values};
  expect(0, {args.batch, args.tokens, args.heads, args.group, args.keys});
  expect(1, {args.batch, args.tokens, args.heads, args.keys});
  expect(2, {args.batch, args.tokens, args.heads, args.values});
  std::size_t next = 3;
  if (args.has_past) expect(next++, state);
  if (args.decays > 0) expect(next++, {args.batch, args.tokens, args.heads, args.decays});
  if (args.betas > 0) expect(next++, {args.batch, args.tokens, args.betas});
  const std::int64_t outputs = bytes_of({args.batch, args.tokens, args.heads, args.group, args.values}, 4);
  request.expect_output(0, static_cast<std::size_t>(outputs));
  request.expect_output(1, static_cast<std::size_t>(bytes_of(state, 4)));
  if (args.values == 0) args.batch = 0;
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("linear_attention_f32"), args);
  const double work = static_cast<double>(outputs) * static_cast<double>(args.keys);
  phase.max_workers = workers_for_bytes(work);
  return one_phase(std::move(phase), 0, work);
}

}  // namespace

extern const OperationEntry linear_attention_operations[] = {{"linear_attention_f32", prepare_linear_attention_f32},
                                                             {}};

}  // namespace engine
