// See kernels/prepare/units/attention.cpp.
#include "blob/element_types.cpp"
#include "blob/json.cpp"
#include "blob/stored_program.cpp"
