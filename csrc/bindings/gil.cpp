// Compiled without exceptions: only then is a cleanup handler a jump, which needs nothing of a C++ runtime. The
// unwinder that ends a thread belongs to the system's libgcc, and a wheel has another one with its own libc++.
#include "bindings/gil.hpp"

#include <pthread.h>
#include <unistd.h>

#if defined(__EXCEPTIONS)
#error "compile this file with -fno-exceptions"
#endif

namespace engine {
namespace {

void stay(void*) {
  while (true) pause();  // returning would continue the unwinding
}

}  // namespace

void take_gil(PyThreadState* state) {
  pthread_cleanup_push(stay, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

}  // namespace engine
