// The contract between kernels and their callers.
//
// A kernel file `csrc/kernels/<family>.cpp` is compiled once for each instruction set that `families.def` lists for it,
// with ENGINE_ISA_NS defined as the set's name and the compiler flags of its row in isas.def. `generic` has no flags,
// so only vector extensions can be used. Code tests predefined macros (__AVX512F__) for the available instructions. The
// file defines its kernels inside `namespace engine::ENGINE_ISA_NS` and ends with its table:
//
//     namespace engine::ENGINE_ISA_NS {
//     extern const KernelEntry softmax_kernels[] = {{"softmax_f32", softmax_f32, nullptr}, {}};
//     }
//
// Everything in such a file, including templates and inline functions, is `static` or inside ENGINE_ISA_NS, and the
// file includes no header of the C++ standard library that defines templates (<cstddef>, <cstdint>, <cmath> for C
// functions, <cstring> and <immintrin.h> are allowed): the linker keeps one copy of a shared inline function, which
// could be the AVX-512 version and then run on a CPU without AVX-512. A test checks the objects.
//
// Kernels never allocate, throw, log or synchronise: all checks are in the family's prepare functions (see
// prepare.hpp), which run once when a plan is built and are compiled for the baseline. Errors that depend on data, such
// as an index out of range, are reported as a Fault: the kernel continues with a defined value, and the run fails after
// its last step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine {

// Invalid data found by a kernel.
struct Fault {
  bool found = false;
  std::int64_t index = 0;  // this index
  std::int64_t size = 0;   // is not one of -size to size - 1
};

// The context of one worker in a step.
struct KernelContext {
  int worker;     // 0 <= worker < workers; a thread may do the work of several
  int workers;    // the number of workers of this step; it must not affect the result, up to rounding
  void* scratch;  // this worker's memory: at least the phase's scratch_bytes, 64-byte aligned, content undefined
  Fault* fault = nullptr;  // this worker's fault; null if faults are not recorded
};

static inline void report_index(const KernelContext& context, std::int64_t index, std::int64_t size) {
  if (context.fault != nullptr) *context.fault = {true, index, size};
}

// Runs one worker's share of a step. It is called once for every worker, with the same args and buffers, before a phase
// that depends on this one starts. There is no barrier inside a phase: a kernel that needs one
// is split into several phases of one step, with temporaries between them (see prepare.hpp).
//
// args     the block that the prepare function filled: constant, shared by all workers and all streams, 64-byte aligned
// buffers  one pointer for each operand of the step: inputs, outputs, temporaries. Temporaries are shared by the
//          workers. Buffers are aligned as declared; bound inputs and outputs only as their element type requires.
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

static inline std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
static inline std::int64_t max64(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

}  // namespace engine
