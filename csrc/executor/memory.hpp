// A block of aligned memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace engine {

// Memory that grows and is freed with std::free, for data whose size shows only while it is computed.
class GrowingMemory {
 public:
  GrowingMemory() = default;
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;
  ~GrowingMemory() { std::free(data_); }

  std::byte* data() const { return data_; }
  // Makes room for this many bytes, which may move the data. Throws std::bad_alloc, also for more than is available.
  void reserve(std::size_t bytes);
  // Gives up the memory, reduced to this many bytes, but never null. Throws std::bad_alloc.
  std::byte* release(std::size_t bytes);

 private:
  void resize(std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

class AlignedMemory {
 public:
  AlignedMemory() = default;

  // `alignment` is a power of two. Throws std::bad_alloc, also for more than the machine's memory: the system would
  // grant the request, and kill the process when the memory is written.
  AlignedMemory(std::size_t bytes, std::size_t alignment) {
    alignment = std::max(alignment, sizeof(void*));
    if (bytes > limit()) throw std::bad_alloc();
    const bool is_large = bytes >= 2 * kHugePage;
    if (is_large) alignment = std::max(alignment, kHugePage);
    const std::size_t rounded = std::max(alignment, (bytes + alignment - 1) & ~(alignment - 1));
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    if (data_ == nullptr) throw std::bad_alloc();
    if (is_large) ask_for_huge_pages(data_.get(), bytes & ~(kHugePage - 1));
  }

  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  static std::size_t limit();
  // A TLB has few entries, and prefetchers stop at page boundaries.
  static void ask_for_huge_pages(void* memory, std::size_t bytes);

  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace engine
