#include "executor/cpu_features.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace engine {
namespace {

constexpr std::array<const char*, kIsaCount> kNames = {"generic", "v2", "avx2", "avx512", "avx512vnni", "avx512bf16"};

#if defined(__x86_64__)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r;
  if (leaf > __get_cpuid_max(leaf & 0x80000000u, nullptr)) return r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

// Which register states the operating system saves; without it wide registers fault although CPUID lists them.
std::uint64_t saved_states() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

bool all_bits(std::uint64_t value, std::initializer_list<int> bits) {
  return std::all_of(bits.begin(), bits.end(), [=](int bit) { return (value >> bit) & 1; });
}

// The levels x86-64-v2, v3 and v4 are those of the psABI, which is what the compiler's flags assume.
Isa detect_isa() {
  const Registers base = cpuid(1), extended = cpuid(7), extended1 = cpuid(7, 1), amd = cpuid(0x80000001u);
  const bool v2 =
      all_bits(base.ecx, {0 /*sse3*/, 9 /*ssse3*/, 13 /*cx16*/, 19 /*sse4.1*/, 20 /*sse4.2*/, 23 /*popcnt*/});
  if (!v2) return Isa::generic;
  const bool os_saves = all_bits(base.ecx, {27 /*osxsave*/});
  const std::uint64_t states = os_saves ? saved_states() : 0;
  const bool v3 = all_bits(states, {1, 2}) && all_bits(base.ecx, {12 /*fma*/, 22 /*movbe*/, 28 /*avx*/, 29 /*f16c*/}) &&
                  all_bits(extended.ebx, {3 /*bmi1*/, 5 /*avx2*/, 8 /*bmi2*/}) && all_bits(amd.ecx, {5 /*lzcnt*/});
  if (!v3) return Isa::v2;
  const bool v4 =
      all_bits(states, {5, 6, 7}) && all_bits(extended.ebx, {16 /*f*/, 17 /*dq*/, 28 /*cd*/, 30 /*bw*/, 31 /*vl*/});
  if (!v4) return Isa::avx2;
  if (!all_bits(extended.ecx, {11 /*vnni*/})) return Isa::avx512;
  return all_bits(extended1.eax, {5 /*bf16*/}) ? Isa::avx512bf16 : Isa::avx512vnni;
}

std::string detect_model() {
  if (cpuid(0x80000000u).eax < 0x80000004u) return "unknown";
  std::array<char, 49> brand{};
  for (std::uint32_t leaf = 0; leaf < 3; ++leaf) {
    const Registers r = cpuid(0x80000002u + leaf);
    std::memcpy(brand.data() + 16 * leaf, &r, 16);
  }
  // Virtual machines often show no more than "AMD EPYC": family, model and stepping tell generations apart.
  std::string name(brand.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  std::ostringstream text;
  text << (name.empty() ? "x86" : name) << " (signature " << std::hex << cpuid(1).eax << ")";
  return text.str();
}

#else

Isa detect_isa() {
  return Isa::generic;
}

std::string detect_model() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
  std::string register_value;
  return file >> register_value ? "arm (midr " + register_value + ")" : "unknown";
}

#endif

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

// Two hardware threads of one core share its multipliers: a second one makes dense kernels slower, not faster.
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

// How many cores the control group's quota is worth, rounded up; 0 where there is no quota.
int quota_cores() {
  double quota = 0, period = 0;
  std::ifstream unified("/sys/fs/cgroup/cpu.max");
  if (unified >> quota >> period) return quota > 0 && period > 0 ? static_cast<int>(std::ceil(quota / period)) : 0;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) {
    return static_cast<int>(std::ceil(quota / period));
  }
  return 0;
}

CpuFeatures detect() {
  CpuFeatures features;
  features.best = detect_isa();
  features.model = detect_model();
  features.l1d_bytes = cache_bytes(1);
  features.l2_bytes = cache_bytes(2);
  features.l3_bytes = cache_bytes(3);
  const std::vector<int> cpus = allowed_cpus();
  features.logical_cores = static_cast<int>(cpus.size());
  features.usable_cores = physical_cores(cpus);
  if (const int quota = quota_cores(); quota > 0) features.usable_cores = std::min(features.usable_cores, quota);
  return features;
}

std::string available_names() {
  std::string names;
  for (const Isa isa : built_isas()) {
    if (isa > cpu_features().best) break;
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return names;
}

}  // namespace

const char* isa_name(Isa isa) {
  return kNames[static_cast<std::size_t>(isa)];
}

const std::vector<Isa>& built_isas() {
#if defined(__x86_64__)
  static const std::vector<Isa> isas = {Isa::generic, Isa::v2,         Isa::avx2,
                                        Isa::avx512,  Isa::avx512vnni, Isa::avx512bf16};
#else
  static const std::vector<Isa> isas = {Isa::generic};
#endif
  return isas;
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

Isa default_isa() {
  const char* limit = std::getenv("ENGINE_MAX_ISA");
  if (limit == nullptr || *limit == '\0') return cpu_features().best;
  for (const Isa isa : built_isas()) {
    // A limit above what this CPU has is no contradiction: one setting serves machines of several generations.
    if (std::string_view(limit) == isa_name(isa)) return std::min(isa, cpu_features().best);
  }
  throw SettingError("ENGINE_MAX_ISA is \"" + std::string(limit) + "\"; expected one of " + available_names());
}

Isa parse_isa(std::string_view name) {
  for (const Isa isa : built_isas()) {
    if (name == isa_name(isa) && isa <= cpu_features().best) return isa;
  }
  throw SettingError("instruction set \"" + std::string(name) + "\" is not available; this CPU and build have " +
                     available_names());
}

}  // namespace engine
