#include "executor/cpu_features.hpp"

#include "executor/cpu_quota.hpp"
#include "executor/kernel_rows.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif

namespace engine {
namespace {

using FeatureSet = std::uint64_t;

// The features of each instruction set.
struct Rows {
#define ENGINE_FEATURE(feature) \
  static constexpr FeatureSet feature = FeatureSet{1} << static_cast<int>(Feature::feature);
#include "isas.def"
  static constexpr FeatureSet kFeatures[] = {
#define ENGINE_ISA(name, architecture, flags, features) features,
#include "isas.def"
  };
};

FeatureSet detected_features();

FeatureSet features_of(Isa isa) {
  const FeatureSet features = Rows::kFeatures[static_cast<std::size_t>(isa)];
#if defined(ENGINE_EMULATE_AMX)
  if (isa == Isa::amx) return features | detected_features();
#endif
  return features;
}

#if defined(__x86_64__)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r;
  if (leaf > static_cast<std::uint32_t>(__get_cpuid_max(leaf & 0x80000000u, nullptr))) return r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

// The register states that the operating system saves; registers that it does not save fault even if CPUID lists them.
std::uint64_t saved_states() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// Asks Linux to save a state of this process that it does not save by default, because it is large. Fails on older
// kernels, and while a thread has a signal stack that is too small for the state.
[[maybe_unused]] bool request_state(int bit) {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, bit) == 0;
#else
  static_cast<void>(bit);
  return false;
#endif
}

FeatureSet detect_features() {
  constexpr std::uint32_t kSavesStates = 1u << 27;  // OSXSAVE: xgetbv is available
  const std::uint64_t states = (cpuid(1).ecx & kSavesStates) != 0 ? saved_states() : 0;
  FeatureSet missing = 0;
  const auto require = [&](FeatureSet feature, std::uint64_t bits, int bit) {
    if (((bits >> bit) & 1) == 0) missing |= feature;
  };
#define ENGINE_CPUID(feature, leaf, subleaf, output, bit) require(Rows::feature, cpuid(leaf, subleaf).output, bit);
#define ENGINE_SAVED_STATE(feature, bit) require(Rows::feature, states, bit);
#include "isas.def"
#define ENGINE_REQUESTED_STATE(feature, bit) \
  if ((missing & Rows::feature) == 0 && !request_state(bit)) missing |= Rows::feature;
#include "isas.def"
#if defined(ENGINE_EMULATE_AVXVNNI)  // for tests: the same instruction in the encoding of AVX-512
  if ((missing & (Rows::avx512 | Rows::vnni)) == 0) missing &= ~Rows::avxvnni;
#endif
  return ~missing;
}

std::string detect_model() {
  if (cpuid(0x80000000u).eax < 0x80000004u) return "unknown";
  std::array<char, 49> brand{};
  for (std::uint32_t leaf = 0; leaf < 3; ++leaf) {
    const Registers r = cpuid(0x80000002u + leaf);
    std::memcpy(brand.data() + 16 * leaf, &r, 16);
  }
  // Virtual machines often report only "AMD EPYC"; family, model and stepping distinguish the generations.
  std::string name(brand.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  std::ostringstream text;
  text << (name.empty() ? "x86" : name) << " (signature " << std::hex << cpuid(1).eax << ")";
  return text.str();
}

#else

// Only Linux reports features in this way; on other systems, the features that every CPU has are used.
FeatureSet detect_features() {
#if defined(__aarch64__) && defined(__linux__)
  FeatureSet missing = 0;
  const auto require = [&](FeatureSet feature, unsigned long bits, int bit) {
    if (((bits >> bit) & 1) == 0) missing |= feature;
  };
#define ENGINE_HWCAP(feature, word, bit) require(Rows::feature, getauxval(word), bit);
#include "isas.def"
  return ~missing;
#elif defined(__aarch64__)
  return Rows::neon;
#else
  return 0;
#endif
}

std::string detect_model() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
  std::string register_value;
  return file >> register_value ? "arm (midr " + register_value + ")" : "unknown";
}

#endif

FeatureSet detected_features() {
  static const FeatureSet features = detect_features();
  return features;
}

std::size_t cache_bytes([[maybe_unused]] int level) {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  const int name = level == 1 ? _SC_LEVEL1_DCACHE_SIZE : level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE;
  return static_cast<std::size_t>(std::max(0L, sysconf(name)));
#else
  return 0;
#endif
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    }
  }
#endif
  if (cpus.empty()) {
    for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu) {
      cpus.push_back(static_cast<int>(cpu));
    }
  }
  return cpus;
}

// Hardware threads of one core share its multipliers: a second thread makes dense kernels slower.
int physical_cores(const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream file(folder + "thread_siblings_list");
    std::string siblings;
    if (!(file >> siblings)) return static_cast<int>(cpus.size());
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

CpuFeatures detect() {
  CpuFeatures features;
  for (const Isa isa : all_isas())
    if (is_of_architecture(isa) && (features_of(isa) & ~detected_features()) == 0) features.highest = isa;
  for (const Isa isa : built_isas())
    if (is_available(isa)) features.best = isa;
  features.model = detect_model();
  features.l1d_bytes = cache_bytes(1);
  features.l2_bytes = cache_bytes(2);
  features.l3_bytes = cache_bytes(3);
  const std::vector<int> cpus = allowed_cpus();
  features.logical_cores = static_cast<int>(cpus.size());
  features.usable_cores = physical_cores(cpus);
  // Rounded up: threads that use a part of a core in each period are faster than too few.
  if (const double quota = cpu_quota(); quota > 0) {
    features.usable_cores = std::min(features.usable_cores, static_cast<int>(std::ceil(quota)));
  }
  return features;
}

std::string available_names() {
  std::string names;
  for (const Isa isa : built_isas()) {
    if (!is_available(isa)) continue;
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return names;
}

}  // namespace

const char* isa_name(Isa isa) {
  constexpr const char* kNames[] = {
#define ENGINE_ISA(name, architecture, flags, features) #name,
#include "isas.def"
  };
  return kNames[static_cast<std::size_t>(isa)];
}

bool has_feature(Isa isa, Feature feature) {
  return ((features_of(isa) >> static_cast<int>(feature)) & 1) != 0;
}

std::vector<const char*> feature_names(Isa isa) {
  std::vector<const char*> names;
#define ENGINE_FEATURE(feature) \
  if (has_feature(isa, Feature::feature)) names.push_back(#feature);
#include "isas.def"
  return names;
}

bool includes(Isa limit, Isa isa) {
  return is_of_architecture(isa) && (features_of(isa) & ~features_of(limit)) == 0;
}

bool is_supported(Isa isa) {
  return is_of_architecture(isa) && (features_of(isa) & ~detected_features()) == 0;
}

bool is_available(Isa isa) {
  return is_built(isa) && is_supported(isa);
}

Isa find_isa(std::string_view name) {
  std::string known;
  for (const Isa isa : all_isas()) {
    if (name == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw SettingError("unknown instruction set \"" + std::string(name) + "\"; expected one of " + known);
}

// The statics below are never destroyed, since a thread may run a plan until the process ends.
const std::vector<Isa>& all_isas() {
  static const auto& isas = *new std::vector<Isa>{
#define ENGINE_ISA(name, architecture, flags, features) Isa::name,
#include "isas.def"
  };
  return isas;
}

const std::vector<Isa>& built_isas() {
  static const auto& isas = *new std::vector<Isa>([] {
    std::vector<Isa> built;
    std::copy_if(all_isas().begin(), all_isas().end(), std::back_inserter(built), is_built);
    return built;
  }());
  return isas;
}

const CpuFeatures& cpu_features() {
  static const auto& features = *new CpuFeatures(detect());
  return features;
}

Isa default_isa() {
  const char* limit = std::getenv("ENGINE_MAX_ISA");
  if (limit == nullptr || *limit == '\0') return cpu_features().best;
  for (const Isa named : all_isas()) {
    if (!is_of_architecture(named) || std::string_view(limit) != isa_name(named)) continue;
    // The limit may exceed this CPU's features, so that one setting serves several generations of machines.
    Isa best = Isa::generic;
    for (const Isa isa : built_isas())
      if (includes(named, isa) && is_available(isa)) best = isa;
    return best;
  }
  throw SettingError("ENGINE_MAX_ISA is \"" + std::string(limit) + "\"; expected one of " + available_names());
}

Isa parse_isa(std::string_view name) {
  std::string names;
  for (const Isa isa : built_isas()) {
    if (name == isa_name(isa)) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw SettingError("instruction set \"" + std::string(name) + "\" is not available; this build has " + names);
}

}  // namespace engine
