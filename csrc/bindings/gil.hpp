// Releases and takes the GIL, also while the interpreter ends.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace engine {

// Releases the GIL for its lifetime, like pybind11::gil_scoped_release. If the interpreter ends meanwhile, its thread
// never continues: before version 3.14, CPython ends such a thread by unwinding its stack, which would destroy objects
// of Python without the GIL and must not pass a destructor, so that the process would be aborted.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      while (true) pause();  // leaving the handler would continue the unwinding
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace engine
