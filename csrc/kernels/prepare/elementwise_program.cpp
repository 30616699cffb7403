#include "kernels/prepare/elementwise_program.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

ElementCode read_type(std::int64_t code, const char* what) {
  if (code < 0 || code >= kElementCodes) {
    throw PlanError(std::string(what) + " has element type " + std::to_string(code) + "; expected 0 to " +
                    std::to_string(kElementCodes - 1));
  }
  return static_cast<ElementCode>(code);
}

constexpr int kSources[kOpcodes] = {
#define ENGINE_OPCODE(enumerator, name, sources) sources,
#include "codes.def"
};

bool is_predicate(Opcode opcode) {
  switch (opcode) {
#define ENGINE_PREDICATE(enumerator, name, sources) case Opcode::enumerator:
#include "codes.def"
    return true;
    default:
      return false;
  }
}

// The type of a source of an instruction of `type`.
ElementCode source_type(Opcode opcode, int source, ElementCode type) {
  switch (opcode) {
    case Opcode::kWhere:
      return source == 0 ? ElementCode::kBool : type;
    case Opcode::kQuantizeU8:
      return source == 2 ? ElementCode::kU8 : type;
    case Opcode::kQuantizeI8:
      return source == 2 ? ElementCode::kI8 : type;
    case Opcode::kDequantizeU8:
      return source == 1 ? type : ElementCode::kU8;
    case Opcode::kDequantizeI8:
      return source == 1 ? type : ElementCode::kI8;
    default:
      return type;
  }
}

ElementCode result_of(Opcode opcode, ElementCode type) {
  if (is_predicate(opcode)) return ElementCode::kBool;
  if (opcode == Opcode::kQuantizeU8 || opcode == Opcode::kQuantizeDynamic) return ElementCode::kU8;
  return opcode == Opcode::kQuantizeI8 ? ElementCode::kI8 : type;
}

void check_source(const Program& program, const std::string& where, int source, ElementCode expected) {
  const int known = program.first_result() + static_cast<int>(program.instructions.size());
  if (source < 0 || source >= known) {
    throw PlanError(where + " reads value " + std::to_string(source) + "; " + std::to_string(known) +
                    " values precede it");
  }
  if (program.type_of(source) != expected) {
    throw PlanError(where + " reads value " + std::to_string(source) + " of " + name_of(program.type_of(source)) +
                    "; expected " + name_of(expected));
  }
}

// Five integers: opcode, element type, and three sources; for a cast, the second source is the result's type, and the
// third one its format or -1.
Instruction read_instruction(const Program& program, const std::int64_t* fields) {
  const std::string where = "instruction " + std::to_string(program.instructions.size());
  Instruction instruction = {};
  instruction.type = read_type(fields[1], where.c_str());
  if (fields[0] < 0 || fields[0] >= kOpcodes) {
    throw PlanError(where + " has opcode " + std::to_string(fields[0]) + "; expected 0 to " +
                    std::to_string(kOpcodes - 1));
  }
  instruction.opcode = static_cast<Opcode>(fields[0]);
  const bool is_cast = instruction.opcode == Opcode::kCast;
  const int sources = kSources[fields[0]];
  instruction.result = is_cast ? read_type(fields[3], where.c_str()) : result_of(instruction.opcode, instruction.type);
  instruction.format = is_cast ? fields[4] : -1;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t source = fields[2 + i];
    instruction.sources[i] = -1;
    if (i >= sources) {
      if (is_cast) continue;
      if (source != -1) throw PlanError(where + " has " + std::to_string(sources) + " sources; expected -1 after them");
      continue;
    }
    const int value = static_cast<int>(std::clamp<std::int64_t>(source, -1, 1 << 20));
    check_source(program, where, value, source_type(instruction.opcode, i, instruction.type));
    instruction.sources[i] = value;
  }
  return instruction;
}

std::vector<int> last_reads(const Program& program) {
  std::vector<int> last(static_cast<std::size_t>(program.first_result()) + program.instructions.size(), -1);
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for (const int source : program.instructions[i].sources)
      if (source >= 0) last[static_cast<std::size_t>(source)] = static_cast<int>(i);
  return last;
}

// The last instruction that reads an input in place.
int last_direct_read(const Program& program, const std::vector<bool>& direct, const std::vector<int>& last) {
  int latest = -1;
  for (std::size_t i = 0; i < direct.size(); ++i)
    if (direct[i]) latest = std::max(latest, last[i]);
  // An output that equals an input is copied from it after all instructions.
  for (const int output : program.outputs)
    if (!program.is_result(output)) latest = static_cast<int>(program.instructions.size());
  return latest;
}

// The costs that the rows of pointwise.def name.
enum class Cost { kExact, kArithmetic, kDivision, kFunction };

int cost_of(Cost cost, bool is_f32, int width) {
  if (cost == Cost::kFunction) return is_f32 ? 10 : 100;
  return cost == Cost::kDivision ? 4 * width : width;
}

StripFn find_small_cast(const Instruction& instruction, const CastTable& table) {
  for (const SmallCasts& casts : table.small) {
    if (casts.format != instruction.format) continue;
    StripFn run = nullptr;
    if (instruction.type == ElementCode::kU8 && instruction.result == ElementCode::kF32) run = casts.to_f32;
    if (instruction.type == ElementCode::kF32 && instruction.result == ElementCode::kU8) run = casts.from_f32;
    if (instruction.type == ElementCode::kF64 && instruction.result == ElementCode::kU8) run = casts.from_f64;
    if (run != nullptr) return run;
  }
  throw PlanError(std::string("there is no cast from ") + name_of(instruction.type) + " to " +
                  name_of(instruction.result) + " of format " + std::to_string(instruction.format));
}

}  // namespace

ElementCode Program::type_of(int value) const {
  const std::size_t index = static_cast<std::size_t>(value);
  if (index < inputs.size()) return inputs[index];
  if (index < inputs.size() + constants.size()) return constants[index - inputs.size()];
  return instructions[index - inputs.size() - constants.size()].result;
}

Program read_program(const Attributes& attributes) {
  Program program;
  for (const std::int64_t code : attributes.integers("input_types"))
    program.inputs.push_back(read_type(code, "an input"));
  if (attributes.has("constants")) {
    const std::vector<std::int64_t>& constants = attributes.integers("constants");
    if (constants.size() % 2 != 0) throw PlanError("\"constants\" has an odd length; expected pairs of type and bits");
    for (std::size_t i = 0; i < constants.size(); i += 2) {
      program.constants.push_back(read_type(constants[i], "a constant"));
      program.constant_bits.push_back(constants[i + 1]);
    }
  }
  const std::vector<std::int64_t>& fields = attributes.integers("program");
  if (fields.size() % 5 != 0) {
    throw PlanError("\"program\" has " + std::to_string(fields.size()) + " values; expected five for each instruction");
  }
  const std::vector<std::int64_t>& outputs = attributes.integers("results");
  const std::size_t values = program.inputs.size() + program.constants.size() + fields.size() / 5;
  if (values + outputs.size() > kElementwiseMaxSlots) {
    throw PlanError("the program has " + std::to_string(values) + " values and " + std::to_string(outputs.size()) +
                    " outputs; expected " + std::to_string(kElementwiseMaxSlots) + " together at most");
  }
  for (std::size_t i = 0; i < fields.size(); i += 5)
    program.instructions.push_back(read_instruction(program, fields.data() + i));
  for (const std::int64_t output : outputs) {
    if (output < 0 || output >= static_cast<std::int64_t>(values)) {
      throw PlanError("an output is value " + std::to_string(output) + "; there are " + std::to_string(values));
    }
    program.outputs.push_back(static_cast<int>(output));
  }
  return program;
}

StripOperation find_operation(const Instruction& instruction, const KernelLookup& kernels) {
  StripOperation operation = {};
  if (instruction.opcode == Opcode::kCast) {
    const auto& table = *static_cast<const CastTable*>(kernels.find("elementwise_cast").traits);
    operation.run = instruction.format < 0
                        ? table.run[static_cast<int>(instruction.type)][static_cast<int>(instruction.result)]
                        : find_small_cast(instruction, table);
    return operation;
  }
  const KernelEntry& entry = kernels.find(std::string("elementwise_") + name_of(instruction.type));
  const auto& table = *static_cast<const StripTable*>(entry.traits);
  const int opcode = static_cast<int>(instruction.opcode);
  operation = {table.run[opcode], table.takes_step[opcode]};
  if (operation.run == nullptr) {
    throw PlanError(std::string("there is no \"") + name_of(instruction.opcode) + "\" for " +
                    name_of(instruction.type));
  }
  return operation;
}

int instruction_cost(const Instruction& instruction) {
  const Opcode opcode = instruction.opcode;
  const int width = instruction.type == ElementCode::kF32 || element_bytes(instruction.type) < 4 ? 1 : 2;
  const bool is_f32 = instruction.type == ElementCode::kF32;
  switch (opcode) {
#define ENGINE_POINTWISE(Name, name, sources, cost, ...) \
  case Opcode::k##Name:                                  \
    return cost_of(Cost::k##cost, is_f32, width);
#define ENGINE_LIBRARY(Name, name, function) \
  case Opcode::k##Name:                      \
    return 100;
#include "pointwise.def"
    case Opcode::kPow:
    case Opcode::kFmod:
    case Opcode::kMod:
      return 50;
    case Opcode::kDiv:
      return cost_of(Cost::kDivision, is_f32, width);
    default:
      return width;
  }
}

Places place_results(const Program& program, const std::vector<bool>& direct) {
  const std::size_t count = program.instructions.size();
  const std::vector<int> last = last_reads(program);
  const int last_direct = last_direct_read(program, direct, last);
  Places places = {std::vector<int>(count, -1), std::vector<int>(count, -1), std::vector<bool>(), 0};
  std::vector<bool> is_kept(count, false);
  for (std::size_t o = 0; o < program.outputs.size(); ++o) {
    const int value = program.outputs[o];
    const std::size_t index = static_cast<std::size_t>(value - program.first_result());
    const bool is_written =
        program.is_result(value) && static_cast<int>(index) >= last_direct && places.output_of[index] < 0;
    if (is_written)
      places.output_of[index] = static_cast<int>(o);
    else if (program.is_result(value))
      is_kept[index] = true;
    places.copied.push_back(!is_written);
  }
  std::vector<int> free;
  for (std::size_t i = 0; i < count; ++i) {
    const Instruction& instruction = program.instructions[i];
    const auto release = [&](bool same_size) {
      for (int s = 0; s < 3; ++s) {
        const int source = instruction.sources[s];
        const bool is_again =
            std::find(instruction.sources, instruction.sources + s, source) != instruction.sources + s;
        if (source < 0 || is_again || !program.is_result(source)) continue;
        const std::size_t from = static_cast<std::size_t>(source - program.first_result());
        if (last[static_cast<std::size_t>(source)] != static_cast<int>(i) || is_kept[from]) continue;
        const bool has_size = element_bytes(program.type_of(source)) == element_bytes(instruction.result);
        if (places.register_of[from] >= 0 && has_size == same_size) free.push_back(places.register_of[from]);
      }
    };
    // A result may replace a source only if element i of both is at the same address.
    release(true);
    if (places.output_of[i] < 0) {
      if (free.empty()) free.push_back(places.registers++);
      places.register_of[i] = free.back();
      free.pop_back();
      const int self = program.first_result() + static_cast<int>(i);
      if (last[static_cast<std::size_t>(self)] < 0 && !is_kept[i]) free.push_back(places.register_of[i]);
    }
    release(false);
  }
  return places;
}

}  // namespace engine
