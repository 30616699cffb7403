// The interpreter of elementwise programs.
//
// Operands: the inputs, the outputs; element alignment. An output may share the buffer of an input that has its element
// size and is read in place (kDirect): prepare orders every other read of the strip before the write. Split over
// strips. Scratch: constants, copies of broadcast inputs, and intermediate values, each of one strip, which stay in the
// L1 cache.
#include "kernels/elementwise.hpp"

#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Elements by size; their type is irrelevant here.
typedef std::uint8_t Element1 __attribute__((may_alias));
typedef std::uint16_t Element2 __attribute__((may_alias));
typedef std::uint32_t Element4 __attribute__((may_alias));
typedef std::uint64_t Element8 __attribute__((may_alias));

template <class T>
void copy_box(T* to, const char* from, const std::int64_t* extents, const std::int64_t* strides, std::int32_t rank) {
  const std::int32_t last = rank - 1;
  std::int64_t index[kElementwiseMaxRank] = {};
  const std::int64_t count = extents[last], stride = strides[last];
  for (;;) {
    if (stride == 0) {
      const T value = *reinterpret_cast<const T*>(from);
      for (std::int64_t i = 0; i < count; ++i) to[i] = value;
    } else if (stride == sizeof(T)) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = *reinterpret_cast<const T*>(from + i * stride);
    }
    to += count;
    std::int32_t d = last - 1;
    for (; d >= 0; --d) {
      from += strides[d];
      if (++index[d] < extents[d]) break;
      from -= strides[d] * extents[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

void copy_box(void* to, const char* from, const std::int64_t* extents, const std::int64_t* strides, std::int32_t rank,
              std::int32_t bytes) {
  switch (bytes) {
    case 1:
      return copy_box(static_cast<Element1*>(to), from, extents, strides, rank);
    case 2:
      return copy_box(static_cast<Element2*>(to), from, extents, strides, rank);
    case 4:
      return copy_box(static_cast<Element4*>(to), from, extents, strides, rank);
    default:
      return copy_box(static_cast<Element8*>(to), from, extents, strides, rank);
  }
}

void splat(void* to, const void* value, std::int32_t count, std::int32_t bytes) {
  const std::int64_t extent = count, stride = 0;
  copy_box(to, static_cast<const char*>(value), &extent, &stride, 1, bytes);
}

// The arrays after the head of the argument block.
struct Program {
  explicit Program(const void* args)
      : head(*static_cast<const ElementwiseArgs*>(args)),
        inputs(reinterpret_cast<const ElementwiseInput*>(&head + 1)),
        constants(reinterpret_cast<const ElementwiseConstant*>(inputs + head.input_count)),
        registers(reinterpret_cast<const ElementwiseRegister*>(constants + head.constant_count)),
        outputs(reinterpret_cast<const ElementwiseOutput*>(registers + head.register_count)),
        instructions(reinterpret_cast<const ElementwiseInstruction*>(outputs + head.output_count)) {}

  const ElementwiseArgs& head;
  const ElementwiseInput* inputs;
  const ElementwiseConstant* constants;
  const ElementwiseRegister* registers;
  const ElementwiseOutput* outputs;
  const ElementwiseInstruction* instructions;
};

// The current position of one worker's strips.
struct Position {
  std::int64_t outer[kElementwiseMaxRank];
  std::int64_t outer_linear, chunk;

  Position(const ElementwiseArgs& head, std::int64_t strip)
      : outer{}, outer_linear(strip / head.chunks), chunk(strip % head.chunks) {
    std::int64_t rest = outer_linear;
    for (std::int32_t d = head.outer_rank - 1; d >= 0; --d) {
      outer[d] = rest % head.outer[d];
      rest /= head.outer[d];
    }
  }

  void advance(const ElementwiseArgs& head) {
    if (++chunk < head.chunks) return;
    chunk = 0;
    ++outer_linear;
    for (std::int32_t d = head.outer_rank - 1; d >= 0; --d) {
      if (++outer[d] < head.outer[d]) return;
      outer[d] = 0;
    }
  }
};

// The part of its source that a copied operand holds, so that the same strip (a value for each channel) is not copied
// again.
struct Held {
  const char* from;
  std::int64_t units;
};

void bring_in(const ElementwiseInput& input, const char* from, std::int64_t units, void* to, Held& held) {
  if (held.from == from && held.units >= units) return;
  held = {from, units};
  if (input.form == OperandForm::kUniform) return splat(to, from, input.fill, input.bytes);
  std::int64_t extents[kElementwiseMaxRank];
  for (std::int32_t d = 0; d < input.box_rank; ++d) extents[d] = input.extents[d];
  extents[0] *= units;
  copy_box(to, from, extents, input.strides, input.box_rank, input.bytes);
}

void elementwise(const void* args, void* const* buffers, const KernelContext& context) {
  const Program program(args);
  const ElementwiseArgs& head = program.head;
  const WorkRange range = split_work(head.strips, context.worker, context.workers);
  if (range.begin >= range.end) return;
  char* const scratch = static_cast<char*>(context.scratch);
  void* slots[kElementwiseMaxSlots];
  Held held[kElementwiseMaxSlots];
  for (std::int32_t i = 0; i < head.constant_count; ++i) {
    const ElementwiseConstant& constant = program.constants[i];
    slots[constant.slot] = scratch + constant.scratch;
    splat(slots[constant.slot], &constant.bits, constant.fill, constant.bytes);
  }
  for (std::int32_t i = 0; i < head.register_count; ++i)
    slots[program.registers[i].slot] = scratch + program.registers[i].scratch;
  for (std::int32_t i = 0; i < head.input_count; ++i) {
    held[i] = {nullptr, 0};
    if (program.inputs[i].form != OperandForm::kDirect)
      slots[program.inputs[i].slot] = scratch + program.inputs[i].scratch;
  }

  Position at(head, range.begin);
  for (std::int64_t strip = range.begin; strip < range.end; ++strip, at.advance(head)) {
    const std::int64_t first = at.chunk * head.chunk;
    const std::int64_t units = head.length - first < head.chunk ? head.length - first : head.chunk;
    for (std::int32_t i = 0; i < head.input_count; ++i) {
      const ElementwiseInput& input = program.inputs[i];
      std::int64_t offset = first * input.chunk_stride;
      for (std::int32_t d = 0; d < head.outer_rank; ++d) offset += at.outer[d] * input.outer_stride[d];
      char* const from = static_cast<char*>(buffers[i]) + offset;
      if (input.form == OperandForm::kDirect)
        slots[input.slot] = from;
      else
        bring_in(input, from, units, slots[input.slot], held[i]);
    }
    const std::int64_t element = (at.outer_linear * head.length + first) * head.unit;
    for (std::int32_t i = 0; i < head.output_count; ++i) {
      const ElementwiseOutput& output = program.outputs[i];
      slots[output.slot] = static_cast<char*>(buffers[head.input_count + i]) + element * output.bytes;
    }
    for (std::int32_t i = 0; i < head.instruction_count; ++i) {
      const ElementwiseInstruction& do_ = program.instructions[i];
      do_.run({slots[do_.y], slots[do_.a], slots[do_.b], slots[do_.c], units * head.unit, do_.a_step, do_.b_step,
               do_.c_step});
    }
  }
}

}  // namespace

extern const KernelEntry elementwise_kernels[] = {{"elementwise", elementwise, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
