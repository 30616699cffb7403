// What this CPU can do, and which instruction set plans are built for.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

// A setting, e.g. an environment variable, has a value that it cannot take.
class SettingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The rows of isas.def, ascending. `generic` is what every architecture has.
enum class Isa {
#define ENGINE_ISA(name, architecture, flags, features) name,
#include "isas.def"
};

enum class Feature {
#define ENGINE_FEATURE(feature) feature,
#include "isas.def"
};

// Whether this architecture's build has kernels for it.
constexpr bool is_built(Isa isa) {
  constexpr bool any = true;
#if defined(__x86_64__)
  constexpr bool x86_64 = true;
#else
  constexpr bool x86_64 = false;
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

// Whether what is compiled for `isa` runs wherever `limit` does: all its features are there.
bool includes(Isa limit, Isa isa);

// Throws SettingError where isas.def has no row of that name.
Isa find_isa(std::string_view name);

// All instruction sets, and those that this build has kernels for, ascending.
const std::vector<Isa>& all_isas();
const std::vector<Isa>& built_isas();

struct CpuFeatures {
  std::string model;  // the brand string, e.g. for the key of a tuning cache; "unknown" where there is none
  Isa best = Isa::generic;
  std::size_t l1d_bytes = 0;  // of one core; 0 where the system does not say
  std::size_t l2_bytes = 0;
  std::size_t l3_bytes = 0;
  int logical_cores = 1;  // that this process may run on
  int usable_cores = 1;   // physical ones of them, and no more than the control group's quota
};

// Read once.
const CpuFeatures& cpu_features();

// The highest instruction set of this CPU, or the lower one that the environment variable ENGINE_MAX_ISA names.
// Reads the variable on each call. Throws SettingError where it has another value.
Isa default_isa();

// Throws SettingError where no build of this architecture has that name, or this CPU does not have the set.
Isa parse_isa(std::string_view name);

}  // namespace engine
