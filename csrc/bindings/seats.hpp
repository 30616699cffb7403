// The contexts of a network's requests, and the arrays that they are bound to.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "executor/context.hpp"

namespace engine {

// The arrays' memory; the caller keeps the arrays alive. Throws std::invalid_argument for other objects.
void bind_arrays(const pybind11::sequence& arrays, const char* kind, bool is_written, std::vector<Binding>& bindings);

// Like `bind_arrays`, for arrays that are read. Values of the host may be at any address, such as constants in a mapped
// file: an array that is not aligned as declared, or not contiguous, is copied. Returns the copies, which the caller
// keeps during the run. An array beyond those declared is bound as it is, for the error of the run.
pybind11::list bind_inputs(const pybind11::sequence& arrays, const std::vector<Buffer>& declared,
                           std::vector<Binding>& bindings);

// The array, or a copy in C order whose data is aligned.
pybind11::object in_order(pybind11::object item, std::size_t alignment);

// What one run needs: a context, and the memory that it is bound to.
struct Seat {
  Context context;
  std::vector<Binding> inputs, outputs, states;
};

// Seats are kept between runs, each for one run at a time. The GIL, held on entry, protects the members.
class Seats {
 public:
  Seats(int max_threads, std::size_t kept) : max_threads_(max_threads), kept_(kept) { idle_.reserve(kept); }

  // A seat for one run, returned when it ends.
  class Taken {
   public:
    Taken(Seats& seats, const std::shared_ptr<const Plan>& plan);
    ~Taken();
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

    Seat* operator->() const { return seat_.get(); }

   private:
    friend class Seats;
    Seats& seats_;
    std::unique_ptr<Seat> seat_;
  };

  // Runs the plan; returns None, or the nanoseconds of each step. Throws RunCancelled, and what Context::run throws.
  pybind11::object run(Taken& seat, const CancelFlag* cancel, bool is_profiled);

 private:
  int max_threads_;
  std::size_t kept_;
  std::vector<std::unique_ptr<Seat>> idle_;
  bool is_short_ = false;  // the last run that finished
};

}  // namespace engine
