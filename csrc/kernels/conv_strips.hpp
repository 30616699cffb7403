// A chain of convolutions on NCHWc16 that runs by strips of rows: [1x1 ->] depthwise [-> 1x1].
#pragma once

#include "kernels/depthwise.hpp"

namespace engine {

// The 1x1 convolutions have one group, stride 1 and no padding. All arguments describe whole maps.
struct ConvStripsArgs {
  ConvArgs expand;  // before the depthwise convolution, if `expands`
  DepthwiseArgs filter;
  ConvArgs project;  // after it, if `projects`
  bool expands, projects;
  KernelFn run_conv, run_depthwise;
  std::int64_t strip_rows;     // of the output, at most
  std::int64_t expanded_rows;  // the most rows of the expanded map that such a strip reads
  std::int64_t expanded_at;    // bytes in a worker's scratch, after a convolution's: the expanded map,
  std::int64_t filtered_at;    // and the result of the depthwise convolution
};

}  // namespace engine
