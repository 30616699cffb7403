// See kernels/prepare/units/attention.cpp.
#include "executor/arena.cpp"
#include "executor/context.cpp"
#include "executor/core_set.cpp"
#include "executor/memory.cpp"
#include "executor/routine.cpp"
#include "executor/signal.cpp"
