// Shared by the kernel tests: every instruction set of this host, guarded buffers, workers, tolerances.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel.hpp"

namespace engine::test {

// One instruction set of this host with its kernels.
struct Target {
  std::string isa;
  std::vector<const KernelEntry*> tables;
  const Target* below = nullptr;  // provides the kernels that this one lacks

  bool has_own(const std::string& name) const;
  const KernelEntry& find(const std::string& name) const;
  template <class Traits>
  const Traits& traits(const std::string& name) const {
    return *static_cast<const Traits*>(find(name).traits);
  }
};

// Ascending; at least the baseline.
const std::vector<Target>& targets();

// Floats between guard words, at an address aligned to a float only when `misaligned`.
class Guarded {
 public:
  explicit Guarded(std::size_t count, float fill = 0.0f, bool misaligned = true);
  explicit Guarded(const std::vector<float>& values, bool misaligned = true);
  float* data() { return storage_.data() + offset_; }
  std::vector<float> values() const;
  // Whether the words around the floats are untouched.
  bool intact() const;

 private:
  std::size_t count_, offset_;
  std::vector<float> storage_;
};

// Runs a kernel once for each of `workers` workers, in descending order to show that the order does not matter.
void run(const KernelEntry& kernel, const void* args, const std::vector<void*>& buffers, int workers,
         std::size_t scratch_bytes);

// Reproducible values in [-1, 1), from `seed`.
std::vector<float> random_floats(std::size_t count, std::uint32_t seed);

// Records a failure unless every pair matches: NaN with NaN, infinities with the same sign, numbers within
// tolerance * (1 + |expected|). Returns whether all match.
bool expect_close(const std::vector<float>& expected, const std::vector<float>& actual, double tolerance,
                  const std::string& what);
bool expect(bool condition, const std::string& what);

// The error bound of a sum of `length` products of values of magnitude one, relative to one: epsilon times a random
// walk of the terms, and five deviations of the sum's own roundings, each relative to the walk so far.
double sum_tolerance(std::int64_t length);

struct Case {
  const char* name;
  std::function<void(const Target&)> run;
};

// Runs the cases on every target that has its own version of one of `kernels` (if empty: of any kernel, below the
// extensions of AVX-512), and prints failures. Returns the exit status of the program.
int run_cases(const std::vector<Case>& cases, const std::vector<std::string>& kernels = {});

}  // namespace engine::test
