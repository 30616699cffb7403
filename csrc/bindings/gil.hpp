// Releases and takes the GIL, also while the interpreter ends.
#pragma once

#include <Python.h>

namespace engine {

// PyEval_RestoreThread, which never returns if the interpreter ends meanwhile. Before version 3.14, CPython ends such a
// thread by unwinding its stack, which would destroy objects of Python without the GIL and must not pass a destructor,
// so that the process would be aborted.
void take_gil(PyThreadState* state);

// Releases the GIL for its lifetime, like pybind11::gil_scoped_release.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { take_gil(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace engine
