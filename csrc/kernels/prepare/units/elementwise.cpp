// See kernels/prepare/units/attention.cpp.
#include "kernels/prepare/elementwise.cpp"
#include "kernels/prepare/elementwise_program.cpp"
#include "kernels/prepare/elementwise_space.cpp"
#include "kernels/prepare/expert_matmul.cpp"
#include "kernels/prepare/gather_weights.cpp"
#include "kernels/prepare/gemm_weights.cpp"
#include "kernels/prepare/rotary.cpp"
#include "kernels/prepare/scale_shift.cpp"
