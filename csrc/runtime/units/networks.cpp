// See kernels/prepare/units/attention.cpp.
#include "runtime/network.cpp"
#include "runtime/request.cpp"
// The last one, since what follows is in the namespace of C.
#include "runtime/engine_runtime.cpp"
