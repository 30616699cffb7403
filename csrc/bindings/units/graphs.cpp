// See plans.cpp. This unit is separate, since a build of named kernels leaves it out.
#include "bindings/graph.cpp"
