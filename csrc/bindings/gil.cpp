// Compiled without exceptions, because only then is a cleanup handler a jump, which needs no C++ runtime. The unwinder
// that ends a thread belongs to the system's libgcc, whereas a wheel has its own libc++ with another unwinder.
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
