// See kernels/prepare/units/attention.cpp.
#include "kernels/prepare/average_bytes.cpp"
#include "kernels/prepare/binary_bytes.cpp"
#include "kernels/prepare/byte_table.cpp"
#include "kernels/prepare/codes.cpp"
#include "kernels/prepare/conv_int8.cpp"
#include "kernels/prepare/depthwise_int8.cpp"
#include "kernels/prepare/product_int8.cpp"
#include "kernels/prepare/requantize_request.cpp"
