// A counter that threads wait on: they first spin, then yield, then sleep.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine {

// Marks a spinning loop: the core saves power, and the sibling hardware thread gets its share.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

class alignas(64) Signal {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Waits until the value differs from `seen`, and returns it. Spins, yields, then sleeps: the awaited thread may have
  // been preempted, and further spinning would occupy its core.
  std::uint32_t wait_while(std::uint32_t seen);

  // Spins for at most `microseconds`; returns true once the value differs from `seen`.
  bool spin_while(std::uint32_t seen, int microseconds);
  // Sleeps until the value differs from `seen`, and returns it.
  std::uint32_t sleep_while(std::uint32_t seen);

  // Changes the value and wakes all sleeping threads. The object must outlive the call: waking accesses it after
  // waiters can have seen the new value.
  void set(std::uint32_t value);

 private:
  void sleep(std::uint32_t seen);
  void wake();

  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace engine
