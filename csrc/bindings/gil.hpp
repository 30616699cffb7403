// Releases and takes the GIL, also while the interpreter ends.
#pragma once

#include <Python.h>

#include <utility>

namespace engine {

// PyEval_RestoreThread, which never returns if the interpreter ends meanwhile. Before version 3.14, CPython ends such a
// thread by unwinding its stack, which would destroy objects of Python without the GIL and must not pass a destructor,
// so that the process would be aborted.
void take_gil(PyThreadState* state);

// Releases the GIL until `take` or the end of the scope, like pybind11::gil_scoped_release; nothing if `releases` is
// false.
class GilReleased {
 public:
  explicit GilReleased(bool releases = true) : state_(releases ? PyEval_SaveThread() : nullptr) {}
  ~GilReleased() { take(); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

  void take() {
    if (state_ != nullptr) take_gil(std::exchange(state_, nullptr));
  }

 private:
  PyThreadState* state_;
};

}  // namespace engine
