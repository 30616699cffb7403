// See kernels/prepare/units/attention.cpp.
#include "kernels/prepare/gemm.cpp"
#include "kernels/prepare/softmax.cpp"
#include "kernels/prepare/tile_request.cpp"
