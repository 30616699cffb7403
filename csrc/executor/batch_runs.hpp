// Which steps of a plan run slice by slice: all of them for a few images of the batch, then for the next ones.
//
// Step by step, a batch's maps between two layers take many times the memory of an image's, and leave the caches before
// the next step reads them. Slice by slice, the maps within a run of steps need no more memory than those of a slice,
// and each worker has images of its own. But weights are read for each slice. The choice compares the bytes that come
// from beyond the caches; results are the same, since kernels add in the same order for any number of images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan.hpp"

namespace engine {

// An operand of a step.
struct RunOperand {
  int root;            // a buffer
  std::size_t offset;  // in the root
  OperandImage image;
  bool is_written;
};

struct RunStep {
  bool is_divisible;
  std::vector<RunOperand> operands;
  double work;  // of the batch
};

struct RunRoot {
  std::size_t bytes;
  bool is_arena;
};

struct BatchRun {
  int begin, end;       // steps
  std::int64_t images;  // of a slice
};

// The runs of a plan, in order, for a batch of `batch` images.
std::vector<BatchRun> choose_batch_runs(const std::vector<RunStep>& steps, const std::vector<RunRoot>& roots,
                                        std::int64_t batch, const BatchMachine& machine);

}  // namespace engine
