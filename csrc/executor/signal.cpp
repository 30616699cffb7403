#include "executor/signal.hpp"

#include <sched.h>

#include <chrono>
#include <climits>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <array>
#include <condition_variable>
#include <mutex>
#endif

namespace engine {
namespace {

using Clock = std::chrono::steady_clock;

// Yielding costs less than 1 us if no other thread wants the core. If one does, it may be the awaited thread, so
// yielding starts early. Waking a sleeping thread takes 10 to 30 us, so staying awake for a few times as long pays off.
constexpr int kSpinMicroseconds = 15;
constexpr int kYieldMicroseconds = 150;

#if !defined(__linux__)
// For systems without futexes: a few condition variables shared by all signals, selected by address, so that a signal
// needs no destructor and fits one cache line.
struct Bed {
  std::mutex mutex;
  std::condition_variable condition;
};

Bed& bed_of(const void* address) {
  static auto& beds = *new std::array<Bed, 64>;
  return beds[(reinterpret_cast<std::uintptr_t>(address) >> 6) % beds.size()];
}
#endif

}  // namespace

std::uint32_t Signal::wait_while(std::uint32_t seen) {
  if (spin_while(seen, kSpinMicroseconds)) return value();
  const Clock::time_point until = Clock::now() + std::chrono::microseconds(kYieldMicroseconds);
  while (Clock::now() < until) {
    sched_yield();
    if (spin_while(seen, 0)) return value();
  }
  return sleep_while(seen);
}

bool Signal::spin_while(std::uint32_t seen, int microseconds) {
  constexpr int kChecksPerClock = 64;  // reading the clock costs about as much as a barrier
  Clock::time_point until{};
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (value() != seen) return true;
      relax();
    }
    if (until == Clock::time_point{}) until = Clock::now() + std::chrono::microseconds(microseconds);
  } while (Clock::now() < until);
  return false;
}

std::uint32_t Signal::sleep_while(std::uint32_t seen) {
  for (;;) {
    if (const std::uint32_t now = value(); now != seen) return now;
    sleep(seen);
  }
}

// Either the sleeper sees the new value, or the setter sees the sleeper: both sides write, then read, with sequential
// consistency.
void Signal::set(std::uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

#if defined(__linux__)

void Signal::sleep(std::uint32_t seen) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the value again, and returns at once if it differs.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Signal::wake() {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else

void Signal::sleep(std::uint32_t seen) {
  Bed& bed = bed_of(this);
  std::unique_lock<std::mutex> lock(bed.mutex);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bed.condition.wait(lock, [&] { return value() != seen; });
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Signal::wake() {
  Bed& bed = bed_of(this);
  const std::lock_guard<std::mutex> lock(bed.mutex);
  bed.condition.notify_all();
}

#endif

}  // namespace engine
