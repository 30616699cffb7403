// See kernels/prepare/units/attention.cpp.
#include "graph/drain.cpp"
#include "graph/exhaustive.cpp"
#include "graph/partition.cpp"
#include "graph/reduce.cpp"
#include "graph/refine.cpp"
#include "graph/repair.cpp"
