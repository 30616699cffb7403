// Plan building for chains of convolutions that run by strips. Each convolution has the attributes of a step of its
// own, with the prefix "expand_", "filter_" or "project_"; `strip_rows`, if given, replaces the choice by size.
#include "kernels/conv_strips.hpp"

#include <algorithm>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

// The size of the two maps in scratch: together with weights and the rows of x and y, they fit L2 caches of 1 MB.
constexpr std::int64_t kStripBytes = 512 << 10;
constexpr std::int64_t kMinRows = 2;
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) {
  return divide_up(bytes, kAlignment) * kAlignment;
}

ConvArgs read_pointwise(const StepRequest& request, const char* prefix) {
  const Attributes attributes = request.attributes.part(prefix);
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("conv_blocked_f32").traits);
  const ConvShape s = read_conv_shape(attributes);
  const bool is_pointwise = s.groups == 1 && s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 &&
                            s.pad_top == 0 && s.pad_left == 0 && s.in_h == s.out_h && s.in_w == s.out_w;
  if (!is_pointwise) {
    throw PlanError("\"" + std::string(prefix) +
                    "\" is not a 1x1 convolution of one group and stride 1, without padding");
  }
  const ConvArgs args = make_conv_args(s, read_conv_operands(attributes), read_epilogue(attributes),
                                       read_conv_tiling(attributes, s, traits), traits);
  attributes.check_all_used();
  return args;
}

DepthwiseArgs read_filter(const StepRequest& request) {
  const Attributes attributes = request.attributes.part("filter_");
  const ConvShape s = read_conv_shape(attributes);
  expect_depthwise(s);
  const DepthwiseArgs args = make_depthwise_args(s, read_conv_operands(attributes), read_epilogue(attributes));
  attributes.check_all_used();
  return args;
}

void expect_connected(const ConvShape& from, const ConvShape& to) {
  if (from.batch == to.batch && from.out_channels == to.in_channels && from.out_h == to.in_h && from.out_w == to.in_w)
    return;
  const auto text = [](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    return "[" + std::to_string(n) + ", " + std::to_string(c) + ", " + std::to_string(h) + ", " + std::to_string(w) +
           "]";
  };
  throw PlanError("a convolution reads " + text(to.batch, to.in_channels, to.in_h, to.in_w) +
                  ", but the one before it writes " + text(from.batch, from.out_channels, from.out_h, from.out_w));
}

std::int64_t rows_read(const ConvShape& filter, std::int64_t rows) {
  const std::int64_t window = (filter.kernel_h - 1) * filter.dilation_h + 1;
  return std::min(filter.in_h, (rows - 1) * filter.stride_h + window);
}

struct MapBytes {
  std::int64_t expanded, filtered;
};

// The scratch for strips of this many rows.
MapBytes map_bytes(const ConvStripsArgs& args, std::int64_t rows) {
  const ConvShape& s = args.filter.shape;
  const auto bytes = [&](std::int64_t height, std::int64_t width) {
    return static_cast<std::int64_t>(blocked_bytes(1, s.out_channels, height, width));
  };
  return {args.expands ? bytes(rows_read(s, rows), s.in_w) : 0, args.projects ? bytes(rows, s.out_w) : 0};
}

std::int64_t choose_rows(const ConvStripsArgs& args) {
  const std::int64_t most = std::max<std::int64_t>(1, args.filter.shape.out_h);
  std::int64_t rows = std::min(kMinRows, most);
  for (; rows < most; ++rows) {
    const MapBytes next = map_bytes(args, rows + 1);
    if (next.expanded + next.filtered > kStripBytes) break;
  }
  return rows;
}

void expect_operands(const StepRequest& request, const ConvStripsArgs& args) {
  const ConvShape& first = args.expands ? args.expand.shape : args.filter.shape;
  const ConvShape& last = args.projects ? args.project.shape : args.filter.shape;
  const std::size_t y_bytes = blocked_bytes(last.batch, last.out_channels, last.out_h, last.out_w);
  std::vector<std::size_t> bytes = {blocked_bytes(first.batch, first.in_channels, first.in_h, first.in_w)};
  const auto add_parameters = [&](const ConvShape& s, const ConvOperands& operands, const PackArgs& pack) {
    bytes.push_back(checked_product({pack_group_words(pack), 4}));
    bytes.insert(bytes.end(), std::size_t{operands.has_bias} + operands.has_scale,
                 blocked_bytes(1, s.out_channels, 1, 1));
  };
  if (args.expands) add_parameters(args.expand.shape, args.expand.operands, args.expand.pack);
  add_parameters(args.filter.shape, args.filter.operands, args.filter.pack);
  if (args.projects) add_parameters(args.project.shape, args.project.operands, args.project.pack);
  if ((args.projects ? args.project.operands : args.filter.operands).has_residual) bytes.push_back(y_bytes);
  request.expect_operands(bytes.size(), 1);
  for (std::size_t i = 0; i < bytes.size(); ++i) request.expect_input(i, bytes[i]);
  request.expect_output(0, y_bytes);
}

PreparedStep prepare_conv_strips_f32(const StepRequest& request) {
  ConvStripsArgs args = {};
  args.expands = request.attributes.has("expand_batch");
  args.projects = request.attributes.has("project_batch");
  args.filter = read_filter(request);
  const ConvShape& s = args.filter.shape;
  std::size_t conv_scratch = 0;
  double work = conv_work(s);
  if (args.expands) {
    args.expand = read_pointwise(request, "expand_");
    expect_connected(args.expand.shape, s);
    conv_scratch = conv_scratch_bytes(args.expand);
    work += conv_work(args.expand.shape);
  }
  if (args.projects) {
    args.project = read_pointwise(request, "project_");
    expect_connected(s, args.project.shape);
    conv_scratch = std::max(conv_scratch, conv_scratch_bytes(args.project));
    work += conv_work(args.project.shape);
  }
  if (args.expand.operands.has_residual || (args.projects && args.filter.operands.has_residual))
    throw PlanError("a convolution before the last has a residual");
  expect_operands(request, args);

  args.run_conv = request.kernels.find("conv_blocked_f32").run;
  args.run_depthwise = request.kernels.find("depthwise_f32").run;
  args.strip_rows = request.attributes.has("strip_rows")
                        ? request.attributes.integer("strip_rows", 1, std::max<std::int64_t>(1, s.out_h))
                        : choose_rows(args);
  args.expanded_rows = rows_read(s, args.strip_rows);
  const MapBytes bytes = map_bytes(args, args.strip_rows);
  args.expanded_at = aligned(static_cast<std::int64_t>(conv_scratch));
  args.filtered_at = args.expanded_at + aligned(bytes.expanded);
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("conv_strips_f32"), args);
  phase.max_workers = static_cast<int>(std::clamp<std::int64_t>(s.batch * s.out_h, 1, phase.max_workers));
  return one_phase(std::move(phase), static_cast<std::size_t>(args.filtered_at + bytes.filtered), work);
}

}  // namespace

extern const OperationEntry conv_strips_operations[] = {{"conv_strips_f32", prepare_conv_strips_f32}, {}};

}  // namespace engine
