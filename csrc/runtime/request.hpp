// The memory of one inference at a time, and its run.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/context.hpp"
#include "executor/memory.hpp"
#include "runtime/network.hpp"

namespace engine {

class Request {
 public:
  // Throws std::bad_alloc.
  explicit Request(std::shared_ptr<const Network> network);

  // All but `cancel` throw Failure (BUSY) while another thread uses the request, and for arguments that do not fit.
  void set_input(std::size_t index, const void* data, std::size_t bytes);
  void* input(std::size_t index);
  void run();
  void get_output(std::size_t index, void* data, std::size_t bytes);
  const void* output(std::size_t index);
  void reset();
  void cancel();

 private:
  class Use;

  std::byte* memory(std::size_t bytes, std::size_t alignment);
  void allocate();
  void place();
  void check_inputs() const;
  bool run_segments();
  void finish();
  void set_initial();
  const Port& checked_output(std::size_t index) const;

  std::shared_ptr<const Network> network_;
  std::vector<AlignedMemory> memory_;
  std::vector<std::unique_ptr<Context>> contexts_;  // of the segments
  // Of the program: the caller's, then those of variables.
  std::vector<std::byte*> inputs_, outputs_;
  std::vector<std::byte*> slots_;  // where values are, except for inputs and for constants, which are null
  std::vector<const std::byte*> constants_;
  std::vector<bool> is_set_;
  bool has_outputs_ = false;

  std::atomic<bool> is_used_{false};
  CancelFlag cancel_;
  std::mutex running_;  // protects `is_running_`, so that a cancellation reaches the run that it was meant for
  bool is_running_ = false;
};

}  // namespace engine
