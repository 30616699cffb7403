// Runs a Loop or a Scan: all trips, with everything in the body, without Python.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/context.hpp"
#include "executor/core_set.hpp"
#include "executor/memory.hpp"
#include "executor/routine.hpp"

namespace engine {

// The inputs and outputs of one run of a repetition. The pointers are to memory of the sizes and alignments of the
// repetition's values; what is written overlaps nothing else.
struct Trips {
  const void* const* inputs;       // in the order of the repetition's inputs
  void* const* carried;            // the final carried values
  void* const* stacked;            // for each stacked result, memory for all trips; null: it grows in `growing`
  GrowingMemory* growing;          // one for each stacked result
  std::int64_t limit = INT64_MAX;  // of the number of trips, which for a Scan is the length of the sequences
  bool condition = true;           // of a Loop, before the first trip
  std::int64_t done = 0;           // set by the run: the number of trips
};

class RepetitionLoop;

// The memory to run one repetition: contexts of all plans in its body, and two buffers for each carried value, which
// trips write in turn, so that nothing is copied between trips. One run at a time.
class Repeater {
 public:
  // `max_workers` as for Context. Throws std::bad_alloc.
  explicit Repeater(std::shared_ptr<const Repetition> repetition, int max_workers = 0, CoreSet* cores = nullptr);
  ~Repeater();
  Repeater(const Repeater&) = delete;
  Repeater& operator=(const Repeater&) = delete;

  // Runs until the limit is reached or the condition is false. Returns false if the flag was set, which is read before
  // each trip and between the steps of a body. With `profile`, it receives for each plan of the body, in the order of
  // calls (for a choice, the plans of the branch for true come first), the nanoseconds of each step over all trips.
  //
  // Throws DataFault, after the plan that found invalid data, and std::bad_alloc if what is stacked does not fit into
  // memory. The outputs are undefined then.
  bool run(Trips& trips, const CancelFlag* cancel = nullptr, std::vector<std::vector<std::int64_t>>* profile = nullptr);

  const Repetition& repetition() const { return *repetition_; }

 private:
  std::shared_ptr<const Repetition> repetition_;
  CoreSet* cores_;
  int workers_ = 1;
  std::unique_ptr<RepetitionLoop> loop_;
};

}  // namespace engine
