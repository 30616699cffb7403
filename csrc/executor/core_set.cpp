#include "executor/core_set.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "executor/cpu_features.hpp"

namespace engine {
namespace {

constexpr int kIdleSpinMicroseconds = 100;
constexpr int kIdleSliceMicroseconds = 10;
// About a microsecond: a thread that is running leaves a finished task within less.
constexpr int kLeavingChecks = 32;
// Setting a cancel flag does not wake a waiting stream, so the stream polls the flag.
constexpr std::chrono::milliseconds kCancelCheck{2};

// Leaked, since threads may outlive the destruction of static objects.
std::atomic<CoreSet*> shared_set{nullptr};

void forget_after_fork() {
  shared_set.store(nullptr, std::memory_order_relaxed);
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget_after_fork);

// Signals must be delivered to the application's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

 private:
  sigset_t previous_;
};

}  // namespace

// A mailbox for one task. Its content belongs to the owner of the lease while it is `empty`, and to the thread while it
// is `taken`.
struct CoreSet::Thread {
  enum class Mail { empty, given, taken };

  Signal given;  // counts the tasks that were given
  std::atomic<Mail> mail{Mail::empty};
  std::shared_ptr<Task> task;
  int worker = 0;
  int workers = 0;
  std::atomic<bool> ends{false};
  std::atomic<bool> stays_awake{false};  // during a lease whose owner gives tasks in quick succession
  std::thread handle;

  // Does nothing if the thread does not leave an earlier task soon.
  void give(const std::shared_ptr<Task>& new_task, int new_worker, int new_workers) {
    for (int checks = 0; mail.load(std::memory_order_acquire) != Mail::empty; ++checks) {
      if (checks == kLeavingChecks) return;
      relax();
    }
    task = new_task;
    worker = new_worker;
    workers = new_workers;
    mail.store(Mail::given, std::memory_order_release);
    given.set(given.value() + 1);
  }

  // Takes a task back that the thread has not begun.
  void take_back() {
    Mail expected = Mail::given;
    if (mail.compare_exchange_strong(expected, Mail::taken, std::memory_order_acquire)) clear();
  }

  // What the thread does with a task.
  void run_given() {
    Mail expected = Mail::given;
    if (!mail.compare_exchange_strong(expected, Mail::taken, std::memory_order_acquire)) return;
    task->run(worker, workers);
    clear();
  }

 private:
  void clear() {
    task.reset();
    mail.store(Mail::empty, std::memory_order_release);
  }
};

CoreSet& CoreSet::shared() {
  if (CoreSet* set = shared_set.load(std::memory_order_acquire)) return *set;
  // Not a function-local static: a fork while another thread holds its guard would block the child forever.
  auto created = std::make_unique<CoreSet>(cpu_features().usable_cores);
  CoreSet* expected = nullptr;
  if (!shared_set.compare_exchange_strong(expected, created.get(), std::memory_order_acq_rel)) return *expected;
  return *created.release();
}

CoreSet::CoreSet(int cores) : cores_(std::max(1, cores)), free_cores_(cores_) {
  threads_.reserve(static_cast<std::size_t>(cores_));
  idle_.reserve(static_cast<std::size_t>(cores_));
}

CoreSet::~CoreSet() {
  for (const auto& thread : threads_) {
    thread->ends.store(true, std::memory_order_relaxed);
    thread->given.set(thread->given.value() + 1);
  }
  for (const auto& thread : threads_) thread->handle.join();
}

int CoreSet::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(waiting_.size());
}

int CoreSet::started_threads() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(threads_.size());
}

CoreSet::Lease CoreSet::lease(int wanted, const CancelFlag* cancel) {
  Lease lease(this);
  lease.threads_.reserve(static_cast<std::size_t>(std::clamp(wanted, 1, cores_)));
  std::unique_lock<std::mutex> lock(mutex_);
  int share = cores_;
  // If one stream had all cores and the next one waited for it, both would wait at each of their barriers for whichever
  // worker another process has interrupted. Side by side, each on fewer cores, they rarely do. The share is that of the
  // arrival: when its turn comes, the stream that had all cores has ended, and will ask for some again. Streams that
  // were cancelled meanwhile will not.
  if (free_cores_ == 0 || !waiting_.empty()) {
    const auto place = waiting_.insert(waiting_.end(), leases_ + static_cast<int>(waiting_.size()) + 1);
    has_waiting_ = true;
    const auto ready = [&] { return place == waiting_.begin() && free_cores_ > 0; };
    bool cancelled = false;
    while (!ready() && !cancelled) {
      if (cancel == nullptr) {
        turn_.wait(lock);
      } else {
        turn_.wait_for(lock, kCancelCheck);
        cancelled = cancel->cancelled();
      }
    }
    share = std::max(1, cores_ / *place);
    for (auto later = waiting_.erase(place); cancelled && later != waiting_.end(); ++later) --*later;
    has_waiting_ = !waiting_.empty();
    if (!waiting_.empty()) turn_.notify_all();
    if (cancelled) return lease;
  }
  // From here on, nothing may throw: the lease would give back cores that it has not taken.
  lease.workers_ = 1;
  ++leases_;
  const int granted = std::min({std::max(1, wanted), share, free_cores_.load()});
  // If a thread cannot be started, the team is smaller; the next lease tries again.
  while (lease.workers_ < granted && (!idle_.empty() || start_thread())) {
    lease.threads_.push_back(idle_.back());
    idle_.pop_back();
    ++lease.workers_;
  }
  free_cores_ -= lease.workers_;
  return lease;
}

void CoreSet::give_back(Lease& lease) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto thread = lease.threads_.rbegin(); thread != lease.threads_.rend(); ++thread) {
    (*thread)->stays_awake.store(false, std::memory_order_relaxed);
    idle_.push_back(*thread);
  }
  free_cores_ += lease.workers_;
  --leases_;
  if (!waiting_.empty()) turn_.notify_all();
}

bool CoreSet::start_thread() {
  std::unique_ptr<Thread> thread;
  try {
    thread = std::make_unique<Thread>();
    const SignalsBlocked blocked;
    thread->handle = std::thread([this, &thread = *thread] { serve(thread); });
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
#if defined(__linux__)
  char name[16];
  std::snprintf(name, sizeof(name), "engine-%zu", threads_.size() + 1);
  pthread_setname_np(thread->handle.native_handle(), name);
#endif
  idle_.push_back(thread.get());  // both have room for all threads
  threads_.push_back(std::move(thread));
  return true;
}

void CoreSet::serve(Thread& thread) {
  for (std::uint32_t seen = 0;;) {
    seen = idle(thread, seen);
    if (thread.ends.load(std::memory_order_relaxed)) return;
    thread.run_given();
  }
}

// Returns the number of tasks when it is not `seen`. Spins only while there are unleased cores, or on a core that is
// leased to it.
std::uint32_t CoreSet::idle(Thread& thread, std::uint32_t seen) {
  ++awake_;
  bool given = false;
  for (int spun = 0; !given && spun < kIdleSpinMicroseconds; spun += kIdleSliceMicroseconds) {
    given = thread.given.spin_while(seen, kIdleSliceMicroseconds);
    if (awake_ > free_cores_ && !thread.stays_awake.load(std::memory_order_relaxed)) break;
    sched_yield();
  }
  --awake_;
  return given ? thread.given.value() : thread.given.sleep_while(seen);
}

CoreSet::Lease::Lease(Lease&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      workers_(std::exchange(other.workers_, 0)),
      threads_(std::move(other.threads_)) {}

CoreSet::Lease::~Lease() {
  if (owner_ != nullptr && workers_ > 0) owner_->give_back(*this);
}

void CoreSet::Lease::stay_awake() {
  for (Thread* thread : threads_) thread->stays_awake.store(true, std::memory_order_relaxed);
}

void CoreSet::Lease::run(const std::shared_ptr<Task>& task, int workers) {
  const auto threads = static_cast<std::size_t>(std::min(workers, workers_)) - 1;
  for (std::size_t i = 0; i < threads; ++i) threads_[i]->give(task, static_cast<int>(i) + 1, workers);
  task->run(0, workers);
  for (std::size_t i = 0; i < threads; ++i) threads_[i]->take_back();
}

}  // namespace engine
