// The contract between kernels and everything above them.
//
// A kernel file `csrc/kernels/<family>.cpp` is compiled once for each instruction set that `families.def` lists for it,
// with ENGINE_ISA_NS defined as that set's name and the compiler's flags of its row in isas.def; of generic these are
// none, and vector extensions are all there is. What the compiler predefines (__AVX512F__) says what code may use.
// The file defines its kernels inside `namespace engine::ENGINE_ISA_NS` and ends with its table:
//
//     namespace engine::ENGINE_ISA_NS {
//     extern const KernelEntry softmax_kernels[] = {{"softmax_f32", softmax_f32, nullptr}, {}};
//     }
//
// Everything that such a file compiles, templates and inline functions included, is `static` or inside
// ENGINE_ISA_NS, and no header of the C++ standard library that defines templates is included (<cstddef>, <cstdint>,
// <cmath> for C functions, <cstring> and <immintrin.h> are fine): the linker keeps one copy of a shared inline
// function, and that copy could be the AVX-512 one, which then runs on a CPU without it. A test checks the objects.
//
// Kernels never allocate, throw, log or synchronise: all checks are in the family's prepare functions (see
// prepare.hpp), which run once at plan build and are compiled for the baseline. What only the data tells, an index out
// of range, is reported as a Fault: the kernel goes on with some defined value, and the run fails when its steps are
// done.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine {

// Data that a kernel cannot compute with.
struct Fault {
  bool found = false;
  std::int64_t index = 0;  // this index
  std::int64_t size = 0;   // is not one of -size to size - 1
};

// What one worker is told about its part of a step.
struct KernelContext {
  int worker;     // 0 <= worker < workers; worker 0 is the thread that called run
  int workers;    // how many run this step; any number must give the same result, up to rounding
  void* scratch;  // this worker's own memory: the phase's scratch_bytes at least, 64-byte aligned, content undefined
  Fault* fault = nullptr;  // this worker's own; null where nobody asks
};

static inline void report_index(const KernelContext& context, std::int64_t index, std::int64_t size) {
  if (context.fault != nullptr) *context.fault = {true, index, size};
}

// Runs one worker's share of a step. Every worker calls it once with the same args and buffers; all of them have passed
// a barrier before the next phase that depends on this one starts, and there is no barrier inside a phase: what needs
// one is several phases of one step, with temporaries between them (see prepare.hpp).
//
// args     the block that the prepare function filled: constant, shared by all workers and all streams, 64-byte aligned
// buffers  one pointer for each operand of the step: inputs, outputs, temporaries. Temporaries are shared
//          by the workers. Alignment is what the buffer was declared with; bound inputs and outputs promise only that
//          of their element type.
using KernelFn = void (*)(const void* args, void* const* buffers, const KernelContext& context);

// A row of a family's table. A row of null pointers ends it.
struct KernelEntry {
  const char* name;  // unique over all families; equal in all instruction sets
  KernelFn run;
  const void* traits;  // constants of this instruction set that prepare needs (tile sizes, lanes), typed by the
                       // family's header, or null
};

// A half-open range of work items.
struct WorkRange {
  std::int64_t begin;
  std::int64_t end;
};

// The share of one worker in `count` items: contiguous, sizes differ by at most one, possibly empty.
static inline WorkRange split_work(std::int64_t count, int worker, int workers) {
  const std::int64_t base = count / workers;
  const std::int64_t rest = count % workers;
  const std::int64_t begin = base * worker + (worker < rest ? worker : rest);
  return {begin, begin + base + (worker < rest ? 1 : 0)};
}

}  // namespace engine
