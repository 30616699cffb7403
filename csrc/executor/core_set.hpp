// The cores of the process and their threads, shared by all runs.
//
// A stream leases cores for one inference, first come, first served. The calling thread is worker 0 and counts as one
// core, so there are never more running workers than cores, regardless of the number of streams. Threads are started
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

// Requests a run to stop. Any thread may set it; any number of runs may share it.
class CancelFlag {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  void reset() { cancelled_.store(false, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_{false};
};

// What a team of workers does. If other processes hold cores, a worker may begin or end `run` after the others have
// done all of the work, and after the lease has ended. Until it has claimed work, it uses only the task itself.
class Task {
 public:
  virtual ~Task() = default;
  // Called once by each worker that came in time; the call of worker 0 returns when all work is done. Must not throw.
  virtual void run(int worker, int workers) = 0;
};

class CoreSet {
 public:
  // The set of this process, with cpu_features().usable_cores cores. A forked child gets a new set, since threads do
  // not survive a fork.
  static CoreSet& shared();

  explicit CoreSet(int cores);
  // Ends the threads. No lease may be left.
  ~CoreSet();
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  int cores() const { return cores_; }
  // Whether a lease would not wait; another stream may change that at any time.
  bool has_free_core() const {
    return free_cores_.load(std::memory_order_relaxed) > 0 && !has_waiting_.load(std::memory_order_relaxed);
  }
  // The number of streams that wait for a core.
  int waiting() const;
  // The number of threads that have been started; at most cores() - 1.
  int started_threads() const;

 private:
  struct Thread;

 public:
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    // The number of workers, including the caller. Zero: cancelled while waiting.
    int workers() const { return workers_; }
    // For runs that follow each other closely: idle workers spin for longer between them.
    void stay_awake();
    // Runs the task on at most so many workers: the calling thread, as worker 0, and leased threads that have left
    // earlier tasks.
    void run(const std::shared_ptr<Task>& task, int workers);

   private:
    friend class CoreSet;
    explicit Lease(CoreSet* owner) : owner_(owner) {}

    CoreSet* owner_;
    int workers_ = 0;
    std::vector<Thread*> threads_;
  };

  // Leases as many free cores as possible, up to `wanted` (at least 1). While none is free, waits for its turn; then
  // takes at most its share: the cores, divided by the streams that had or awaited some when it arrived, without those
  // that were cancelled meanwhile. So streams that follow each other closely soon run side by side, and one that is
  // alone uses all cores. Returns a lease without workers if the flag is set before a core is free. If the system
  // starts no more threads, the lease has the existing ones. Throws std::bad_alloc, having leased nothing.
  Lease lease(int wanted, const CancelFlag* cancel = nullptr);

 private:
  void give_back(Lease& lease);
  bool start_thread();
  void serve(Thread& thread);
  std::uint32_t idle(Thread& thread, std::uint32_t seen);

  const int cores_;
  mutable std::mutex mutex_;
  std::condition_variable turn_;
  std::list<int> waiting_;  // in order of arrival: among how many streams each shares the cores
  std::atomic<bool> has_waiting_{false};
  int leases_ = 0;  // that have workers
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Thread*> idle_;  // threads without a lease; the most recently used, which may still be awake, is last
  std::atomic<int> free_cores_;
  std::atomic<int> awake_{0};  // idle threads that still spin; they sleep at once if streams need all cores
};

}  // namespace engine
