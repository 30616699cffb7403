// See kernels/prepare/units/attention.cpp.
#include "graph/bound.cpp"
#include "graph/expand.cpp"
#include "graph/min_cut.cpp"
#include "graph/published/self_references.cpp"
#include "graph/runs.cpp"
#include "graph/schedule.cpp"
