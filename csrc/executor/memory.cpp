#include "executor/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "executor/available_memory.hpp"

namespace engine {
namespace {

constexpr std::size_t kUnchecked = std::size_t{16} << 20;  // smaller requests need no look at the system
constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

// The number in a file; unknown if there is none, as in a control group without a limit.
std::size_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? value : kUnknown;
}

// The number behind a name in a file of names and numbers.
std::size_t number_of(const char* path, const std::string& wanted, std::size_t otherwise) {
  std::ifstream file(path);
  std::string name, rest;
  std::size_t value = 0;
  while (file >> name >> value) {
    if (name == wanted) return value;
    std::getline(file, rest);
  }
  return otherwise;
}

std::size_t available_in_group(const std::string& folder, const char* limit_name, const char* used_name,
                               const char* reclaimable_name) {
  const std::size_t limit = number_in(folder + limit_name), used = number_in(folder + used_name);
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  const std::size_t reclaimable = number_of((folder + "memory.stat").c_str(), reclaimable_name, 0);
  const std::size_t held = used > reclaimable ? used - reclaimable : 0;
  return limit > held ? limit - held : 0;
}

// The bytes that the process can still allocate and fill, according to the system and its control group; kUnknown if
// neither says. Reads files, so it is for rare, large requests only. The system would grant more, and kill the process
// when the memory is written. `engine.limits` computes the same in Python, but a loop that grows cannot call it, since
// it does not hold the GIL.
std::size_t available_memory() {
  const std::size_t kilobytes = number_of("/proc/meminfo", "MemAvailable:", kUnknown);
  return std::min({kilobytes == kUnknown ? kUnknown : kilobytes << 10,
                   available_in_group("/sys/fs/cgroup/", "memory.max", "memory.current", "inactive_file"),
                   available_in_group("/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file")});
}

}  // namespace

void check_available(std::size_t bytes) {
  if (bytes > kUnchecked && bytes > available_memory()) throw std::bad_alloc();
}

void GrowingMemory::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return;
  const auto larger = [&](std::size_t more) { return std::max({bytes, capacity_ + more, std::size_t{64}}); };
  std::size_t wanted = larger(capacity_);
  if (wanted > kUnchecked) {
    const std::size_t available = available_memory();
    if (wanted - capacity_ > available) wanted = larger(capacity_ / 8);
    if (wanted - capacity_ > available) throw std::bad_alloc();
  }
  resize(wanted);
}

void GrowingMemory::resize(std::size_t bytes) {
  auto* moved = static_cast<std::byte*>(std::realloc(data_, bytes));
  if (moved == nullptr) throw std::bad_alloc();
  data_ = moved;
  capacity_ = bytes;
}

std::byte* GrowingMemory::release(std::size_t bytes) {
  resize(std::max(bytes, std::size_t{1}));
  std::byte* data = data_;
  data_ = nullptr;
  capacity_ = 0;
  return data;
}

std::size_t AlignedMemory::limit() {
  static const std::size_t bytes = [] {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0) return std::numeric_limits<std::size_t>::max() / 2;
    return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page);
  }();
  return bytes;
}

void AlignedMemory::ask_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, MADV_HUGEPAGE);  // if this fails, small pages are used
#endif
}

}  // namespace engine
