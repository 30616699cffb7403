// An elementwise program as a step's attributes give it, checked; and its values' places.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elementwise.hpp"
#include "kernels/prepare.hpp"

namespace engine {

// Values are numbered: the inputs, the constants, then one for each instruction.
struct Instruction {
  Opcode opcode;     // kCast for all casts
  ElementCode type;  // of the sources; of a Where, of b and c
  ElementCode result;
  int sources[3];  // values; -1 where there is none
};

struct Program {
  std::vector<ElementCode> inputs;
  std::vector<ElementCode> constants;
  std::vector<std::int64_t> constant_bits;
  std::vector<Instruction> instructions;
  std::vector<int> outputs;  // values

  int first_result() const { return static_cast<int>(inputs.size() + constants.size()); }
  ElementCode type_of(int value) const;
  bool is_result(int value) const { return value >= first_result(); }
};

Program read_program(const Attributes& attributes);

// The function of an instruction, of the best instruction set, and whether its sources may be one vector of equal
// elements. Throws PlanError where the type has no such operation.
struct StripOperation {
  StripFn run;
  bool takes_step;
};
StripOperation find_operation(const Instruction& instruction, const KernelLookup& kernels);

// What an element of a result costs, in additions of f32.
int instruction_cost(const Instruction& instruction);

// Where the results of instructions live.
struct Places {
  std::vector<int> register_of;  // one for each instruction; -1: in the memory of an output
  std::vector<int> output_of;    // the output in whose memory, or -1
  std::vector<bool> copied;      // for each output: filled by a copy after all instructions
  int registers;
};

// `direct` says of each input whether it is read in place: an output, which may be the same memory, is written only
// when no such input is read afterwards.
Places place_results(const Program& program, const std::vector<bool>& direct);

}  // namespace engine
