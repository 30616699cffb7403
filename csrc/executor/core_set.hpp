// The cores of the process and the threads on them, shared by all that runs.
//
// A stream leases cores for one inference, first come, first served. The calling thread is worker 0 and counts as one
// of them, so that there are never more running workers than cores, however many streams there are. Threads are started
// when first needed, live as long as the process, and sleep when idle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/signal.hpp"

namespace engine {

// Asks a run to stop. Any thread may set it, any number of runs may share it.
class CancelFlag {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  void reset() { cancelled_.store(false, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_{false};
};

class CoreSet {
 public:
  // The set of this process: as many as cpu_features().usable_cores. A forked child gets a new one, as threads do not
  // survive a fork.
  static CoreSet& shared();

  explicit CoreSet(int cores);
  // Ends the threads. No lease may be left.
  ~CoreSet();
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  int cores() const { return cores_; }
  // How many threads have been started; at most cores() - 1.
  int started_threads() const;

  // What a team of workers runs. Called once by each of them.
  using TeamFn = void (*)(void* argument, int worker, int workers);

 private:
  struct Thread;

 public:
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    // Number of workers, the caller included. Zero: cancelled while waiting.
    int workers() const { return workers_; }
    // Runs on all workers, and returns when all have returned. The function must not throw.
    void run(TeamFn function, void* argument);

   private:
    friend class CoreSet;
    explicit Lease(CoreSet* owner) : owner_(owner) {}

    CoreSet* owner_;
    int workers_ = 0;
    std::vector<Thread*> threads_;
  };

  // Takes up to `wanted` cores (1 at least), as many as are free; waits its turn while none is. Returns a lease of no
  // workers where the flag was set before it got one.
  Lease lease(int wanted, const CancelFlag* cancel = nullptr);

 private:
  void give_back(Lease& lease);
  bool start_thread();
  void serve(Thread& thread);
  void idle(Thread& thread, std::uint32_t seen);

  const int cores_;
  mutable std::mutex mutex_;
  std::condition_variable turn_;
  std::list<const CancelFlag*> waiting_;  // who came first is in front
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Thread*> idle_;  // threads without a lease; the one used last is at the end, for it may still be awake
  std::atomic<int> free_cores_;
  std::atomic<int> awake_{0};  // idle threads that still spin; sleep at once where streams need all cores
};

}  // namespace engine
