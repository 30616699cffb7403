// The features of this CPU, and the instruction set that plans are built for.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

// A setting, e.g. an environment variable, has an invalid value.
class SettingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The rows of isas.def, ascending. Every architecture has `generic`.
enum class Isa {
#define ENGINE_ISA(name, architecture, flags, features) name,
#include "isas.def"
};

enum class Feature {
#define ENGINE_FEATURE(feature) feature,
#include "isas.def"
};

// Whether an instruction set is one of this architecture.
constexpr bool is_of_architecture(Isa isa) {
  constexpr bool any = true;
#if defined(__x86_64__)
  constexpr bool x86_64 = true;
#else
  constexpr bool x86_64 = false;
#endif
#if defined(__aarch64__)
  constexpr bool aarch64 = true;
#else
  constexpr bool aarch64 = false;
#endif
  constexpr bool kBuilt[] = {
#define ENGINE_ISA(name, architecture, flags, features) architecture,
#include "isas.def"
  };
  return kBuilt[static_cast<std::size_t>(isa)];
}

const char* isa_name(Isa isa);

bool has_feature(Isa isa, Feature feature);

// The names of an instruction set's features.
std::vector<const char*> feature_names(Isa isa);

// Whether `limit` has all features of `isa`, so that code compiled for `isa` runs on every CPU with `limit`.
bool includes(Isa limit, Isa isa);

// Whether this CPU has the features of an instruction set, for kernels of its own and of higher ones.
bool is_supported(Isa isa);

// Whether this build has the kernels for it and this CPU runs them.
bool is_available(Isa isa);

// Throws SettingError if isas.def has no row of that name.
Isa find_isa(std::string_view name);

// All instruction sets, and those that this build has the kernels for (kernel_rows.hpp), ascending.
const std::vector<Isa>& all_isas();
const std::vector<Isa>& built_isas();

struct CpuFeatures {
  std::string model;           // the brand string, e.g. for the key of a tuning cache; "unknown" if there is none
  Isa highest = Isa::generic;  // of the CPU
  Isa best = Isa::generic;     // of those that this build has the kernels for
  std::size_t l1d_bytes = 0;   // of one core; 0 if the system does not report it
  std::size_t l2_bytes = 0;
  std::size_t l3_bytes = 0;
  int logical_cores = 1;  // on which this process may run
  int usable_cores = 1;   // physical cores among them, limited by the control group's quota
};

// Read once.
const CpuFeatures& cpu_features();

// The highest instruction set of this CPU, limited by the environment variable ENGINE_MAX_ISA. Reads the variable on
// each call. Throws SettingError if it does not name an instruction set.
Isa default_isa();

// Throws SettingError if this build has not the kernels of an instruction set of that name. This CPU may lack it.
Isa parse_isa(std::string_view name);

}  // namespace engine
