// A counter that threads wait on: spinning first, then giving way, then asleep.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine {

class alignas(64) Signal {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Returns when the value differs from `seen`, with the new one. Spins, gives way, then sleeps: the thread that is
  // waited for may have been preempted, and spinning on would keep it from its core.
  std::uint32_t wait_while(std::uint32_t seen);

  // Spins for some microseconds; true when the value differs from `seen`.
  bool spin_while(std::uint32_t seen, int microseconds);
  // Sleeps; returns when the value differs from `seen`, with the new one.
  std::uint32_t sleep_while(std::uint32_t seen);

  // Changes the value and wakes all who sleep. Does not touch the object once a waiter can have seen the new value
  // and left, except to wake: the object must outlive the call.
  void set(std::uint32_t value);

 private:
  void sleep(std::uint32_t seen);
  void wake();

  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// Lets a team of threads go on when all of them have arrived. Reusable.
class alignas(64) Barrier {
 public:
  void wait(std::uint32_t workers);

 private:
  std::atomic<std::uint32_t> arrived_{0};
  Signal phase_;
};

}  // namespace engine
