// An elementwise program, read from a step's attributes and checked; and the places of its values.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elementwise.hpp"
#include "kernels/prepare.hpp"

namespace engine {

// Values are numbered: the inputs, the constants, then one for each instruction.
struct Instruction {
  Opcode opcode;     // kCast for all casts
  ElementCode type;  // of the sources; for Where, of b and c; for (de)quantizations, of b
  ElementCode result;
  int sources[3];            // values; -1 if there is none
  std::int64_t format = -1;  // of the u8 that a cast reads or writes, if they are small floating-point numbers; else -1
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

// The function of an instruction, for the best instruction set, and whether its sources may be one vector of equal
// elements. Throws PlanError if the type has no such operation.
struct StripOperation {
  StripFn run;
  bool takes_step;
};
StripOperation find_operation(const Instruction& instruction, const KernelLookup& kernels);

// The cost of one element of a result, in f32 additions.
int instruction_cost(const Instruction& instruction);

// The places of the results of instructions.
struct Places {
  std::vector<int> register_of;  // one for each instruction; -1: in the memory of an output
  std::vector<int> output_of;    // the output in whose memory the result is, or -1
  std::vector<bool> copied;      // for each output: filled by a copy after all instructions
  int registers;
};

// `direct` says for each input whether it is read in place: an output, which may share its memory, is written only when
// no such input is read afterwards.
Places place_results(const Program& program, const std::vector<bool>& direct);

}  // namespace engine
