// One of the units that the bindings are compiled in. Reading pybind11 and compiling what it defines in every unit
// takes 5 to 7 s, longer than most sources of this folder by themselves.
#include "bindings/attributes.cpp"
#include "bindings/module.cpp"
#include "bindings/running.cpp"
#include "bindings/seats.cpp"
