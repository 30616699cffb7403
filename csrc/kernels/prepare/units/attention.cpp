// Sources that a release build compiles together: most of the work of compiling one is to read headers and to compile
// the templates of the standard library that it uses. Their unnamed namespaces must have no name in common.
#include "kernels/prepare/attention.cpp"
#include "kernels/prepare/linear_attention.cpp"
#include "kernels/prepare/tensor_scatter.cpp"
