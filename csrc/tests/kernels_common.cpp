#include "kernels_common.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "executor/cpu_features.hpp"
#include "executor/kernel_rows.hpp"

namespace engine::test {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::uint32_t kGuardBits = 0x7fc0dead;  // a NaN that no computation produces
int failures = 0;
std::string current;

void add_table(std::vector<Target>& all, Isa isa, const KernelEntry* table) {
  for (Target& target : all)
    if (target.isa == isa_name(isa)) target.tables.push_back(table);
}

float guard_value() {
  float value;
  std::memcpy(&value, &kGuardBits, sizeof value);
  return value;
}

bool is_guard(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits == kGuardBits;
}

}  // namespace

bool Target::has_own(const std::string& name) const {
  for (const KernelEntry* entry : tables)
    for (; entry->name; ++entry)
      if (name == entry->name) return true;
  return false;
}

const KernelEntry& Target::find(const std::string& name) const {
  for (const KernelEntry* entry : tables)
    for (; entry->name; ++entry)
      if (name == entry->name) return *entry;
  if (below) return below->find(name);
  throw std::runtime_error("no kernel " + name + " for " + isa);
}

const std::vector<Target>& targets() {
  static const std::vector<Target> all = [] {
    std::vector<Target> found;
    // Not only those that are built as a whole: a family's best row for a CPU may be of a lower instruction set.
    for (const Isa isa : all_isas())
      if (is_available(isa) || includes(cpu_features().highest, isa)) found.push_back({isa_name(isa), {}});
    for (const KernelRow& row : kernel_rows())
      if (row.table != nullptr) add_table(found, row.isa, row.table);
    const auto is_empty = [](const Target& target) { return target.tables.empty(); };
    found.erase(std::remove_if(found.begin(), found.end(), is_empty), found.end());
    for (std::size_t i = 1; i < found.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (includes(find_isa(found[i].isa), find_isa(found[j].isa))) found[i].below = &found[j];
    return found;
  }();
  return all;
}

Guarded::Guarded(std::size_t count, float fill, bool misaligned)
    : count_(count), offset_(kGuard + (misaligned ? 1 : 0)), storage_(count + 2 * kGuard + 1, guard_value()) {
  for (std::size_t i = 0; i < count; ++i) storage_[offset_ + i] = fill;
}

Guarded::Guarded(const std::vector<float>& values, bool misaligned) : Guarded(values.size(), 0.0f, misaligned) {
  if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(float));
}

std::vector<float> Guarded::values() const {
  return {storage_.begin() + offset_, storage_.begin() + offset_ + count_};
}

bool Guarded::intact() const {
  for (std::size_t i = 0; i < storage_.size(); ++i)
    if ((i < offset_ || i >= offset_ + count_) && !is_guard(storage_[i])) return false;
  return true;
}

void run(const KernelEntry& kernel, const void* args, const std::vector<void*>& buffers, int workers,
         std::size_t scratch_bytes) {
  for (int worker = workers - 1; worker >= 0; --worker) {
    // Filled with NaN, to detect reads of data that the kernel has not written. Guarded, to detect overruns.
    Guarded scratch((scratch_bytes + 3) / 4 + 16, guard_value());
    auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
    kernel.run(args, buffers.data(), {worker, workers, reinterpret_cast<void*>((address + 63) / 64 * 64)});
    expect(scratch.intact(), "scratch overrun");
  }
}

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
  return values;
}

bool expect(bool condition, const std::string& what) {
  if (!condition && ++failures <= 20) std::printf("FAILED %s: %s\n", current.c_str(), what.c_str());
  return condition;
}

bool expect_close(const std::vector<float>& expected, const std::vector<float>& actual, double tolerance,
                  const std::string& what) {
  if (!expect(expected.size() == actual.size(), what + ": sizes differ")) return false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i], a = actual[i];
    const bool equal = std::isnan(e)   ? std::isnan(a)
                       : std::isinf(e) ? a == e
                                       : std::fabs(a - e) <= tolerance * (1 + std::fabs(e));
    if (!equal) {
      return expect(false, what + ": [" + std::to_string(i) + "] is " + std::to_string(a) + ", expected " +
                               std::to_string(e) + " within " + std::to_string(tolerance * 1e6) + "e-6");
    }
  }
  return true;
}

double sum_tolerance(std::int64_t length) {
  const double n = static_cast<double>(length);
  return 4 * 1.2e-7 * (2 + std::sqrt(n)) + 4e-8 * n;
}

int run_cases(const std::vector<Case>& cases, const std::vector<std::string>& kernels) {
  for (const Target& target : targets()) {
    const Isa isa = find_isa(target.isa);
    const bool is_extension =
        has_feature(isa, Feature::vnni) || has_feature(isa, Feature::amx_tile) || has_feature(isa, Feature::dotprod);
    const bool has_any =
        std::any_of(kernels.begin(), kernels.end(), [&](const std::string& kernel) { return target.has_own(kernel); });
    if (kernels.empty() ? is_extension : !has_any) continue;
    for (const Case& test_case : cases) {
      current = std::string(test_case.name) + " [" + target.isa + "]";
      const int before = failures;
      test_case.run(target);
      std::printf("%s %s\n", failures == before ? "ok    " : "FAILED", current.c_str());
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace engine::test
