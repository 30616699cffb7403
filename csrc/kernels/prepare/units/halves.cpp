// See kernels/prepare/units/attention.cpp.
#include "kernels/prepare/extension.cpp"
#include "kernels/prepare/extension_call.cpp"
#include "kernels/prepare/gemm_tiled.cpp"
#include "kernels/prepare/product_rates.cpp"
#include "kernels/prepare/request.cpp"
