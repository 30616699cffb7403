// Plan building for recurrent layers.
#include "kernels/recurrent.hpp"

#include <algorithm>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLargestRecurrent = std::int64_t{1} << 30;
// If workers share time steps, each step is a separate phase, with its arguments in memory.
constexpr std::int64_t kMaxPhases = 4096;
// Multiply-adds of a time step for each worker below which a barrier costs more than sharing the step saves.
constexpr std::int64_t kMinShare = 8 * 1024;

std::int64_t padded_hidden(const RecurrentShape& shape) {
  return (shape.hidden + kBlock - 1) / kBlock * kBlock;
}

int parts_of(const RecurrentShape& shape) {
  return shape.cell == RecurrentCell::kGru ? 2 : 1;
}

}  // namespace

std::int64_t recurrent_weight_floats(const RecurrentShape& shape) {
  const std::int64_t padded = padded_hidden(shape);
  return shape.directions * recurrent_gates(shape.cell) * padded * padded;
}

RecurrentArgs make_recurrent_args(const RecurrentShape& shape, const RecurrentOperands& operands) {
  RecurrentArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.padded = padded_hidden(shape);
  args.projection_direction = recurrent_gates(shape.cell) * args.padded;
  const std::int64_t row = shape.directions * args.projection_direction;
  args.projection_step = shape.batch_first ? row : shape.batch * row;
  args.projection_batch = shape.batch_first ? shape.steps * row : row;
  const std::int64_t wide = shape.directions * shape.hidden, plane = shape.batch * shape.hidden;
  args.y_step = shape.batch_first ? wide : shape.batch * wide;
  args.y_batch = shape.batch_first ? shape.steps * wide : shape.hidden;
  args.y_direction = shape.batch_first ? shape.hidden : plane;
  args.outer_batch = shape.batch_first ? wide : shape.hidden;
  args.outer_direction = shape.batch_first ? shape.hidden : plane;
  return args;
}

RecurrentSplit choose_recurrent_split(const RecurrentShape& shape, std::int64_t workers) {
  if (workers <= 1 || shape.directions % workers == 0) return RecurrentSplit::kSequences;
  if (shape.steps * parts_of(shape) >= kMaxPhases) return RecurrentSplit::kSequences;
  const double work = static_cast<double>(recurrent_weight_floats(shape)) * static_cast<double>(shape.batch);
  return work / (workers * parts_of(shape)) < kMinShare ? RecurrentSplit::kSequences : RecurrentSplit::kUnits;
}

namespace {

// Attributes: cell (RecurrentCell), steps, batch, hidden; directions (1),
// reversed (0): the only direction runs backwards; batch_first, input_forget (0); clip (none); for RNN: activation,
// alpha, beta as in convolutions (kTanh or another). Flags of optional operands (0): lengths, initial_h, initial_c,
// peephole; y, y_h, y_c. workers (1): the expected number; it affects only rounding. repeatable (0): a sequence's
// result has the same bits for any batch and number of workers. Inputs: projection, weights, for gru_linear
// recurrent_bias, then lengths, initial_h, initial_c, peephole if present; outputs: y, y_h, y_c if present.
RecurrentShape read_shape(const Attributes& attributes) {
  RecurrentShape shape;
  shape.cell = read_code<RecurrentCell>(attributes, "cell");
  shape.steps = attributes.integer("steps", 0, kLargestRecurrent);
  shape.batch = attributes.integer("batch", 0, kLargestRecurrent);
  shape.hidden = attributes.integer("hidden", 1, kLargestRecurrent);
  shape.directions = attributes.integer_or("directions", 1, 2, 1);
  shape.reversed = attributes.flag("reversed");
  if (shape.reversed && shape.directions == 2)
    throw PlanError("attribute \"reversed\" requires one direction; two directions are always forward and reverse");
  shape.batch_first = attributes.flag("batch_first");
  shape.repeatable = attributes.flag("repeatable");
  const bool is_lstm = shape.cell == RecurrentCell::kLstm;
  if (is_lstm) shape.input_forget = attributes.flag("input_forget");
  const double clip = attributes.real_or("clip", static_cast<double>(__builtin_inff()));
  if (!(clip > 0)) throw PlanError("attribute \"clip\" is " + std::to_string(clip) + "; expected more than 0");
  shape.clip = static_cast<float>(clip);
  if (shape.cell == RecurrentCell::kRnn) shape.activation = read_epilogue(attributes);
  return shape;
}

// Numbers the operands in the order of the step's inputs, outputs and temporaries, and checks their sizes.
class Operands {
 public:
  explicit Operands(const StepRequest& request) : request_(request) {}

  std::int32_t input(bool is_there, const std::vector<std::int64_t>& shape) {
    if (!is_there) return -1;
    const std::size_t bytes = checked_product(shape);
    if (inputs_ < request_.inputs.size()) request_.expect_input(inputs_, bytes);
    return static_cast<std::int32_t>(inputs_++);
  }
  std::int32_t output(bool is_there, const std::vector<std::int64_t>& shape) {
    if (!is_there) return -1;
    const std::size_t bytes = checked_product(shape);
    if (outputs_ < request_.outputs.size()) request_.expect_output(outputs_, bytes);
    return static_cast<std::int32_t>(inputs_ + outputs_++);
  }
  std::int32_t temporary(bool is_there, const std::vector<std::int64_t>& shape) {
    if (!is_there) return -1;
    temporaries.push_back(checked_product(shape));
    return static_cast<std::int32_t>(inputs_ + outputs_ + temporaries.size() - 1);
  }
  void check_count() const { request_.expect_operands(inputs_, outputs_); }

  std::vector<std::size_t> temporaries;

 private:
  const StepRequest& request_;
  std::size_t inputs_ = 0, outputs_ = 0;
};

RecurrentOperands read_operands(const RecurrentShape& s, const Attributes& attributes, Operands& operands) {
  constexpr std::int64_t kFloat = sizeof(float);
  const bool is_lstm = s.cell == RecurrentCell::kLstm, is_gru = s.cell == RecurrentCell::kGru;
  const std::int64_t gates = recurrent_gates(s.cell), padded = padded_hidden(s);
  const std::vector<std::int64_t> state = {s.directions, s.batch, s.hidden, kFloat};
  const std::vector<std::int64_t> inner = {s.directions, s.batch, padded, kFloat};
  RecurrentOperands o;
  o.projection = operands.input(true, {s.steps, s.batch, s.directions, gates, padded, kFloat});
  o.weights = operands.input(true, {s.directions, gates, padded, padded, kFloat});
  o.recurrent_bias = operands.input(s.cell == RecurrentCell::kGruLinear, {s.directions, padded, kFloat});
  o.lengths = operands.input(attributes.flag("lengths"), {s.batch, kFloat});
  o.initial_h = operands.input(attributes.flag("initial_h"), state);
  o.initial_c = operands.input(is_lstm && attributes.flag("initial_c"), state);
  o.peephole = operands.input(is_lstm && attributes.flag("peephole"), {s.directions, 3, padded, kFloat});
  o.y = operands.output(attributes.flag("y"), {s.steps, s.directions, s.batch, s.hidden, kFloat});
  o.y_h = operands.output(attributes.flag("y_h"), state);
  o.y_c = operands.output(is_lstm && attributes.flag("y_c"), state);
  operands.check_count();
  o.state_h = operands.temporary(true, {2, s.directions, s.batch, padded, kFloat});
  o.state_c = operands.temporary(is_lstm, inner);
  o.update = operands.temporary(is_gru, inner);
  o.reset = operands.temporary(is_gru, inner);
  return o;
}

std::vector<PreparedPhase> make_phases(RecurrentArgs args, RecurrentSplit split, const KernelLookup& kernels) {
  const RecurrentShape& shape = args.shape;
  const auto sequences = static_cast<int>(std::min<std::int64_t>(shape.directions * shape.batch, 1 << 20));
  std::vector<PreparedPhase> phases;
  const auto add = [&](const KernelEntry& kernel, int workers) {
    phases.push_back(PreparedPhase::of(kernel, args));
    phases.back().max_workers = std::max(1, workers);
  };
  if (split == RecurrentSplit::kSequences) {
    add(kernels.find("recurrent_sequence_f32"), sequences);
    return phases;
  }
  const auto chunks = static_cast<int>(std::min<std::int64_t>(shape.directions * args.padded / kBlock, 1 << 20));
  const KernelEntry& step = kernels.find("recurrent_step_f32");
  add(kernels.find("recurrent_begin_f32"), sequences);
  for (args.step = 0; args.step < shape.steps; ++args.step)
    for (args.part = 0; args.part < parts_of(shape); ++args.part) add(step, chunks);
  return phases;
}

PreparedStep prepare_recurrent_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const RecurrentShape shape = read_shape(attributes);
  Operands operands(request);
  const RecurrentArgs args = make_recurrent_args(shape, read_operands(shape, attributes, operands));
  const std::int64_t workers = attributes.integer_or("workers", 1, kLargestRecurrent, 1);
  PreparedStep step;
  step.phases = make_phases(args, choose_recurrent_split(shape, workers), request.kernels);
  step.temporaries = std::move(operands.temporaries);
  step.work =
      2.0 * static_cast<double>(shape.steps * shape.batch) * static_cast<double>(recurrent_weight_floats(shape));
  return step;
}

}  // namespace

extern const OperationEntry recurrent_operations[] = {{"recurrent_f32", prepare_recurrent_f32}, {}};

}  // namespace engine
