#include "kernels/prepare/conv_residues.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/prepare.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestStride = 64;

// The convolution of one residue along one axis. Taps are in the order of the input: from the last kernel index down.
struct AxisPart {
  std::int64_t first_output, outputs;
  std::int64_t taps, last_index, index_step;
  std::int64_t dilation, pad;
};

AxisPart part_of_axis(std::int64_t residue, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                      std::int64_t dilation, std::int64_t pad) {
  AxisPart part = {};
  part.first_output = ((residue - pad) % stride + stride) % stride;
  part.outputs = part.first_output < out ? (out - 1 - part.first_output) / stride + 1 : 0;
  part.index_step = stride / std::gcd(stride, dilation);
  part.dilation = part.index_step * dilation / stride;
  std::int64_t first_index = 0;
  while (first_index < part.index_step && first_index * dilation % stride != residue) ++first_index;
  if (first_index == part.index_step || first_index >= kernel) return part;
  part.taps = (kernel - 1 - first_index) / part.index_step + 1;
  part.last_index = first_index + (part.taps - 1) * part.index_step;
  const std::int64_t first_place = (part.first_output + pad - residue) / stride;  // exact, and may be below 0
  part.pad = (part.last_index * dilation - residue) / stride - first_place;
  return part;
}

}  // namespace

std::vector<ResiduePart> residue_parts(const ConvShape& s) {
  if (std::max(s.stride_h, s.stride_w) > kLargestStride) {
    throw PlanError("strides " + std::to_string(s.stride_h) + " and " + std::to_string(s.stride_w) +
                    " for a transposed convolution; expected " + std::to_string(kLargestStride) +
                    " at most, or a kernel of that size without padding");
  }
  std::vector<ResiduePart> parts;
  for (std::int64_t r = 0; r < s.stride_h; ++r)
    for (std::int64_t c = 0; c < s.stride_w; ++c) {
      const AxisPart rows = part_of_axis(r, s.out_h, s.kernel_h, s.stride_h, s.dilation_h, s.pad_top);
      const AxisPart cols = part_of_axis(c, s.out_w, s.kernel_w, s.stride_w, s.dilation_w, s.pad_left);
      ConvShape shape = s;
      shape.kernel_h = rows.taps;
      shape.kernel_w = cols.taps;
      shape.stride_h = shape.stride_w = 1;
      shape.dilation_h = rows.dilation;
      shape.dilation_w = cols.dilation;
      shape.pad_top = rows.pad;
      shape.pad_left = cols.pad;
      shape.out_h = rows.outputs;
      shape.out_w = cols.outputs;
      parts.push_back({shape, rows.first_output * s.out_w + cols.first_output,
                       rows.last_index * s.kernel_w + cols.last_index, -rows.index_step * s.kernel_w,
                       -cols.index_step});
    }
  return parts;
}

void set_transposed_strides(const ConvShape& s, ConvArgs& args) {
  args.y_pixel = s.stride_w * 16;
  args.y_row = s.stride_h * s.out_w * 16;
  args.y_block = s.out_h * s.out_w * 16;
  PackArgs& pack = args.pack;
  pack.channel_stride = s.kernel_h * s.kernel_w;
  pack.depth_stride = s.out_channels / s.groups * pack.channel_stride;
  pack.block_stride = 16 * pack.depth_stride;
  pack.group_stride = s.in_channels / s.groups * pack.depth_stride;
}

void set_residue(const ConvShape& s, const ResiduePart& part, ConvArgs& args) {
  set_transposed_strides(s, args);
  args.y_group = args.channel_group / 16 * args.y_block;
  args.y_offset = part.first_output * 16;
  args.pack.row_stride = part.row_stride;
  args.pack.col_stride = part.col_stride;
  args.pack.source_offset = part.first_weight;
}

}  // namespace engine
