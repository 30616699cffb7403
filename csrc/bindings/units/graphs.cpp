// See plans.cpp. Apart from the others, since a build of named kernels leaves it out.
#include "bindings/graph.cpp"
