// See kernels/prepare/units/attention.cpp.
#include "runtime/blob.cpp"
#include "runtime/sha256.cpp"
