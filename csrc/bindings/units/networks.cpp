// See plans.cpp.
#include "bindings/extensions.cpp"
#include "bindings/families.cpp"
#include "bindings/routines.cpp"
#include "bindings/stored_program.cpp"
