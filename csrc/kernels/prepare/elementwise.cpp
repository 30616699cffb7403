// Plan building for elementwise programs.
//
// Attributes (element types and opcodes are numbers of ElementCode and Opcode, kernels/elementwise.hpp):
//   dims            the shape of the outputs, which are row-major, of up to 8 dimensions
//   input_types     the element type of each input
//   input_strides   for each input one stride for each dimension, in elements; 0 repeats the input along a dimension
//   constants       optional: for each constant its element type and its bits (of an f32, those 32, zero-extended)
//   program         for each instruction: opcode, element type of its sources, three sources (-1: none)
//   results         for each output, the value that it receives
// Values are numbered: inputs, constants, then one for each instruction. An output may share the buffer of an input
// with the same element size and strides.
#include <algorithm>
#include <string>

#include "kernels/prepare.hpp"
#include "kernels/prepare/elementwise_program.hpp"
#include "kernels/prepare/elementwise_space.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLongStrip = 4096, kShortestShare = 512, kShortestStrip = 256;
// The part of the L1 cache that the strips of a program may use, besides the lines that are streamed through it.
constexpr std::int64_t kStripBytes = 16 << 10;
// The least work for a worker, in f32 additions: a barrier takes as long as a few thousand.
constexpr double kMinShare = 8192;
// With more workers, shares are less equal, since shorter strips would slow all of them down.
constexpr std::int64_t kMaxShared = 8;

struct Space {
  std::vector<std::int64_t> dims;
  std::vector<OperandStrides> operands;  // the inputs, then one for all outputs
  std::int64_t elements;
};

std::size_t extent_bytes(const std::vector<std::int64_t>& dims, const OperandStrides& operand) {
  std::size_t last = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0) return 0;
    last = checked_add(last, checked_product({dims[d] - 1, operand.strides[d]}));
  }
  return checked_multiply(checked_add(last, 1), static_cast<std::size_t>(operand.bytes));
}

Space read_space(const StepRequest& request, const Program& program) {
  Space space = {request.attributes.integers("dims"), {}, 0};
  const std::size_t rank = space.dims.size();
  if (rank > kElementwiseMaxRank) {
    throw PlanError("\"dims\" has " + std::to_string(rank) + " dimensions; expected " +
                    std::to_string(kElementwiseMaxRank) + " at most");
  }
  // Times the largest element size, so that byte offsets cannot overflow.
  const std::size_t largest = checked_multiply(checked_product(space.dims), 8);
  if (largest > static_cast<std::size_t>(INT64_MAX)) throw PlanError("the product of \"dims\" overflows");
  space.elements = static_cast<std::int64_t>(largest / 8);
  const std::vector<std::int64_t>& strides = request.attributes.integers("input_strides");
  if (strides.size() != rank * program.inputs.size()) {
    throw PlanError("\"input_strides\" has " + std::to_string(strides.size()) + " values; expected " +
                    std::to_string(rank) + " for each of " + std::to_string(program.inputs.size()) + " inputs");
  }
  request.expect_operands(program.inputs.size(), program.outputs.size());
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const auto from = strides.begin() + static_cast<std::ptrdiff_t>(i * rank);
    space.operands.push_back({element_bytes(program.inputs[i]), {from, from + static_cast<std::ptrdiff_t>(rank)}});
    request.expect_input(i, extent_bytes(space.dims, space.operands.back()));
  }
  for (std::size_t o = 0; o < program.outputs.size(); ++o) {
    const int bytes = element_bytes(program.type_of(program.outputs[o]));
    request.expect_output(o, static_cast<std::size_t>(space.elements) * static_cast<std::size_t>(bytes));
  }
  OperandStrides dense = {1, std::vector<std::int64_t>(rank, 1)};
  for (std::size_t d = rank; d-- > 1;)
    dense.strides[d - 1] = dense.strides[d] * std::max<std::int64_t>(1, space.dims[d]);
  space.operands.push_back(dense);
  return space;
}

// Assembles the argument block.
struct Block {
  ElementwiseArgs head;
  std::vector<ElementwiseInput> inputs;
  std::vector<ElementwiseConstant> constants;
  std::vector<ElementwiseRegister> registers;
  std::vector<ElementwiseOutput> outputs;
  std::vector<ElementwiseInstruction> instructions;
  std::size_t scratch_bytes = 0;

  std::int64_t take(std::int64_t bytes) {
    const std::int64_t at = static_cast<std::int64_t>(scratch_bytes);
    scratch_bytes += (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    return at;
  }
};

// Whether a value that is constant over a strip must be repeated over the whole strip for some reader.
std::vector<bool> find_repeated(const Program& program, const std::vector<StripOperation>& operations) {
  std::vector<bool> is_repeated(static_cast<std::size_t>(program.first_result()) + program.instructions.size(), false);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    for (int s = 0; s < 3; ++s) {
      const int source = instruction.sources[s];
      const bool is_condition = instruction.opcode == Opcode::kWhere && s == 0;
      if (source >= 0 && (!operations[i].takes_step || is_condition))
        is_repeated[static_cast<std::size_t>(source)] = true;
    }
  }
  return is_repeated;
}

// Outputs that no instruction writes are filled by copies, which are also instructions. Inputs are copied before they
// are overwritten.
void append_copies(Program& program, Places& places, const KernelLookup& kernels,
                   std::vector<StripOperation>& operations) {
  for (const bool of_results : {false, true}) {
    for (std::size_t o = 0; o < program.outputs.size(); ++o) {
      const int value = program.outputs[o];
      if (!places.copied[o] || program.is_result(value) != of_results) continue;
      const ElementCode type = program.type_of(value);
      program.instructions.push_back({Opcode::kCopy, type, type, {value, -1, -1}});
      operations.push_back(find_operation(program.instructions.back(), kernels));
      places.register_of.push_back(-1);
      places.output_of.push_back(static_cast<int>(o));
    }
  }
}

// The longest strip whose data fits the L1 cache, but short enough to give workers equal shares.
std::int64_t choose_strip(std::int64_t buffers, std::int64_t width, std::int64_t elements, std::int64_t workers) {
  std::int64_t longest = kLongStrip;
  while (longest > kShortestStrip && buffers * longest * width > kStripBytes) longest /= 2;
  const std::int64_t parts = workers == 1 ? 1 : std::min(workers, kMaxShared) * 2;
  const std::int64_t share = (elements / parts + 63) / 64 * 64;
  return std::clamp(share, std::min(kShortestShare, longest), longest);
}

std::int64_t count_workers(const Program& program, std::int64_t elements) {
  double cost = static_cast<double>(program.inputs.size() + program.outputs.size());
  for (const Instruction& instruction : program.instructions) cost += instruction_cost(instruction);
  const double shares = cost * static_cast<double>(elements) / kMinShare;
  return static_cast<std::int64_t>(std::clamp(shares, 1.0, double{1 << 20}));
}

void place_instructions(const Program& program, const Places& places, const std::vector<StripOperation>& operations,
                        const std::vector<bool>& is_repeated, Block& block) {
  const std::int32_t first_register = program.first_result();
  const std::int32_t first_output = first_register + places.registers;
  const auto slot_of = [&](int value) {
    if (!program.is_result(value)) return static_cast<std::int32_t>(value);
    const std::size_t index = static_cast<std::size_t>(value - program.first_result());
    return places.register_of[index] >= 0 ? first_register + places.register_of[index]
                                          : first_output + places.output_of[index];
  };
  const auto step_of = [&](int value) {
    if (program.is_result(value) || is_repeated[static_cast<std::size_t>(value)]) return std::int64_t{1};
    const std::size_t index = static_cast<std::size_t>(value);
    const bool is_one = index >= block.inputs.size() || block.inputs[index].form == OperandForm::kUniform;
    return std::int64_t{is_one ? 0 : 1};
  };
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    ElementwiseInstruction placed = {};
    placed.run = operations[i].run;
    placed.y = slot_of(program.first_result() + static_cast<int>(i));
    std::int32_t* const slots[3] = {&placed.a, &placed.b, &placed.c};
    std::int64_t* const steps[3] = {&placed.a_step, &placed.b_step, &placed.c_step};
    for (int s = 0; s < 3; ++s) {
      const int source = program.instructions[i].sources[s];
      *slots[s] = source < 0 ? placed.y : slot_of(source);
      *steps[s] = source < 0 ? 1 : step_of(source);
    }
    block.instructions.push_back(placed);
  }
  for (std::size_t o = 0; o < program.outputs.size(); ++o)
    block.outputs.push_back(
        {first_output + static_cast<std::int32_t>(o), element_bytes(program.type_of(program.outputs[o]))});
}

// Allocates scratch for all values that are not read or written in place.
void place_scratch(const Program& program, const Places& places, const std::vector<bool>& is_repeated,
                   std::int64_t strip, std::int64_t width, Block& block) {
  const auto fill_of = [&](std::size_t value, int bytes) {
    return static_cast<std::int32_t>(is_repeated[value] ? strip : kSplatBytes / bytes);
  };
  for (std::size_t i = 0; i < block.inputs.size(); ++i) {
    ElementwiseInput& input = block.inputs[i];
    input.slot = static_cast<std::int32_t>(i);
    if (input.form == OperandForm::kDirect) continue;
    input.fill = input.form == OperandForm::kUniform ? fill_of(i, input.bytes) : static_cast<std::int32_t>(strip);
    input.scratch = block.take(std::int64_t{input.fill} * input.bytes);
  }
  for (std::size_t c = 0; c < program.constants.size(); ++c) {
    const std::size_t value = program.inputs.size() + c;
    const int bytes = element_bytes(program.constants[c]);
    const std::int32_t fill = fill_of(value, bytes);
    block.constants.push_back({static_cast<std::int32_t>(value), bytes, fill, block.take(std::int64_t{fill} * bytes),
                               program.constant_bits[c]});
  }
  for (int r = 0; r < places.registers; ++r)
    block.registers.push_back({program.first_result() + r, block.take(strip * width)});
}

template <class T>
void append(std::vector<std::byte>& bytes, const T* from, std::size_t count) {
  const auto* const raw = reinterpret_cast<const std::byte*>(from);
  bytes.insert(bytes.end(), raw, raw + count * sizeof(T));
}

PreparedPhase finish(Block& block, const KernelEntry& kernel) {
  ElementwiseArgs& head = block.head;
  head.input_count = static_cast<std::int32_t>(block.inputs.size());
  head.constant_count = static_cast<std::int32_t>(block.constants.size());
  head.register_count = static_cast<std::int32_t>(block.registers.size());
  head.output_count = static_cast<std::int32_t>(block.outputs.size());
  head.instruction_count = static_cast<std::int32_t>(block.instructions.size());
  PreparedPhase phase;
  phase.run = kernel.run;
  append(phase.args, &head, 1);
  append(phase.args, block.inputs.data(), block.inputs.size());
  append(phase.args, block.constants.data(), block.constants.size());
  append(phase.args, block.registers.data(), block.registers.size());
  append(phase.args, block.outputs.data(), block.outputs.size());
  append(phase.args, block.instructions.data(), block.instructions.size());
  phase.scratch_bytes = block.scratch_bytes;
  return phase;
}

PreparedStep prepare_elementwise(const StepRequest& request) {
  Program program = read_program(request.attributes);
  Space space = read_space(request, program);
  const KernelEntry& kernel = request.kernels.find("elementwise");
  std::vector<StripOperation> operations;
  for (const Instruction& instruction : program.instructions)
    operations.push_back(find_operation(instruction, request.kernels));
  Block block = {};
  if (space.elements == 0) return {{finish(block, kernel)}, {}, 0, nullptr};

  merge_dimensions(space.dims, space.operands);
  StripPlan plan = cut_strips(space.dims, kLongStrip);
  std::vector<bool> direct;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    block.inputs.push_back(place_operand(space.dims, space.operands[i], plan));
    direct.push_back(block.inputs.back().form == OperandForm::kDirect);
  }
  const std::int64_t workers = count_workers(program, space.elements);
  Places places = place_results(program, direct);
  append_copies(program, places, request.kernels, operations);
  const std::vector<bool> is_repeated = find_repeated(program, operations);

  std::int64_t buffers = places.registers, width = 1;
  for (std::size_t i = 0; i < program.inputs.size() + program.constants.size(); ++i) {
    const bool is_expanded = i < block.inputs.size() && block.inputs[i].form == OperandForm::kExpanded;
    buffers += is_expanded || is_repeated[i] ? 1 : 0;
    width = std::max<std::int64_t>(width, element_bytes(program.type_of(static_cast<int>(i))));
  }
  for (const Instruction& instruction : program.instructions)
    width = std::max<std::int64_t>(width, element_bytes(instruction.result));
  plan = cut_strips(space.dims, choose_strip(buffers, width, space.elements, workers));
  block.head = plan.args;
  place_scratch(program, places, is_repeated, plan.args.chunk * plan.args.unit, width, block);
  place_instructions(program, places, operations, is_repeated, block);
  PreparedPhase phase = finish(block, kernel);
  phase.max_workers = static_cast<int>(std::min(workers, plan.args.strips));
  return {{std::move(phase)}, {}, 0, nullptr};
}

}  // namespace

extern const OperationEntry elementwise_operations[] = {{"elementwise", prepare_elementwise, true}, {}};

}  // namespace engine
