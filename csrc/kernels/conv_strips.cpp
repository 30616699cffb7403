// conv_strips_f32: [1x1 convolution ->] depthwise convolution [-> 1x1 convolution] on NCHWc16, by strips of output
// rows.
//
// Operands: x; for each convolution w (packed as for a step of its own), [bias], [scale]; [residual] of the last; y.
// y must not overlap any other operand. Split over (image, output row): each worker computes the rows of the expanded
// map that its output rows need, and keeps them, and the result of the depthwise convolution, in its scratch, where
// they stay in a cache. Rows that two workers need are computed by both; rows that two strips need, once.
#include "kernels/conv_strips.hpp"

#include <cstring>

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kMaxOperands = 6;  // of a convolution

// The operands of one convolution: x and the output are set for each strip.
struct Stage {
  void* operands[kMaxOperands];
  int count;  // without the residual and the output
};

struct Walk {
  const ConvStripsArgs* args;
  KernelContext context;  // of one worker, for the convolutions
  Stage expand, filter, project;
  const float* x;
  const float* residual;  // or null
  float* y;
  float* expanded;
  float* filtered;
  std::int64_t image;
  std::int64_t first, end;  // the rows of the expanded map that are in scratch
};

Stage read_stage(const ConvOperands& operands, void* const*& next) {
  Stage stage = {};
  stage.count = 2 + operands.has_bias + operands.has_scale;
  for (int i = 1; i < stage.count; ++i) stage.operands[i] = *next++;
  return stage;
}

void run_stage(const Walk& walk, KernelFn kernel, const void* args, const Stage& stage, const float* x,
               const float* residual, float* y) {
  void* operands[kMaxOperands];
  std::memcpy(operands, stage.operands, sizeof(operands));
  int count = stage.count;
  operands[0] = const_cast<float*>(x);
  if (residual != nullptr) operands[count++] = const_cast<float*>(residual);
  operands[count] = y;
  kernel(args, operands, walk.context);
}

// Makes scratch hold rows [first, end) of the expanded map, the first of which it may have already.
void expand_rows(Walk& walk, std::int64_t first, std::int64_t end) {
  ConvArgs args = walk.args->expand;
  const std::int64_t row = args.shape.in_w * 16, block = walk.args->expanded_rows * row;
  std::int64_t from = first;
  if (walk.end > first) {
    const std::int64_t blocks = (args.shape.out_channels + 15) / 16, kept = (walk.end - first) * row;
    float* to = walk.expanded;
    if (walk.first < first) {
      for (std::int64_t b = 0; b < blocks; ++b, to += block)
        std::memmove(to, to + (first - walk.first) * row, static_cast<std::size_t>(kept) * sizeof(float));
    }
    from = walk.end;
  }
  walk.first = first;
  walk.end = end;
  if (from >= end) return;
  const float* x = walk.x + walk.image * args.x_batch + from * row;
  args.shape.batch = 1;
  args.shape.out_h = end - from;
  args.y_block = block;
  run_stage(walk, walk.args->run_conv, &args, walk.expand, x, nullptr, walk.expanded + (from - first) * row);
}

// Output rows [begin, begin + rows) of the image.
void run_strip(Walk& walk, std::int64_t begin, std::int64_t rows) {
  const ConvStripsArgs& all = *walk.args;
  DepthwiseArgs args = all.filter;
  const ConvShape& whole = all.filter.shape;
  const std::int64_t out_row = whole.out_w * 16;
  const std::int64_t start = begin * whole.stride_h - whole.pad_top;
  const float* x = walk.x + walk.image * args.x_batch;
  args.shape.batch = 1;
  args.shape.out_h = rows;
  args.shape.pad_top = -start;
  if (all.expands) {
    const std::int64_t last = start + (rows - 1) * whole.stride_h + (whole.kernel_h - 1) * whole.dilation_h;
    const std::int64_t first = start < 0 ? 0 : start < whole.in_h ? start : whole.in_h;
    const std::int64_t end = last < whole.in_h ? last + 1 : whole.in_h;
    expand_rows(walk, first, end > first ? end : first);
    x = walk.expanded;
    args.shape.in_h = walk.end - first;
    args.shape.pad_top = first - start;
    args.x_block = all.expanded_rows * whole.in_w * 16;
  }
  const std::int64_t y_batch = all.projects ? all.project.y_batch : args.y_batch;
  const std::int64_t residual_batch = all.projects ? all.project.residual_batch : args.residual_batch;
  float* y = walk.y + walk.image * y_batch + begin * out_row;
  const float* residual =
      walk.residual == nullptr ? nullptr : walk.residual + walk.image * residual_batch + begin * out_row;
  if (!all.projects) return run_stage(walk, all.run_depthwise, &args, walk.filter, x, residual, y);
  args.y_block = all.strip_rows * out_row;
  run_stage(walk, all.run_depthwise, &args, walk.filter, x, nullptr, walk.filtered);
  ConvArgs project = all.project;
  project.shape.batch = 1;
  project.shape.in_h = all.strip_rows;
  project.shape.out_h = rows;
  run_stage(walk, all.run_conv, &project, walk.project, walk.filtered, residual, y);
}

void conv_strips_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ConvStripsArgs& args = *static_cast<const ConvStripsArgs*>(raw_args);
  const ConvShape& s = args.filter.shape;
  const WorkRange range = split_work(s.batch * s.out_h, context.worker, context.workers);
  if (range.begin == range.end) return;
  char* scratch = static_cast<char*>(context.scratch);
  Walk walk = {};
  walk.args = &args;
  walk.context = {0, 1, scratch, context.fault};
  walk.expanded = reinterpret_cast<float*>(scratch + args.expanded_at);
  walk.filtered = reinterpret_cast<float*>(scratch + args.filtered_at);
  walk.x = static_cast<const float*>(*buffers++);
  if (args.expands) walk.expand = read_stage(args.expand.operands, buffers);
  walk.filter = read_stage(args.filter.operands, buffers);
  if (args.projects) walk.project = read_stage(args.project.operands, buffers);
  const ConvOperands& last = args.projects ? args.project.operands : args.filter.operands;
  if (last.has_residual) walk.residual = static_cast<const float*>(*buffers++);
  walk.y = static_cast<float*>(*buffers);

  for (std::int64_t at = range.begin; at < range.end;) {
    walk.image = at / s.out_h;
    walk.first = walk.end = 0;
    const std::int64_t begin = at % s.out_h, rest = range.end - at;
    const std::int64_t rows = rest < s.out_h - begin ? rest : s.out_h - begin;
    const int strips = static_cast<int>((rows + args.strip_rows - 1) / args.strip_rows);
    for (int i = 0; i < strips; ++i) {
      const WorkRange strip = split_work(rows, i, strips);
      run_strip(walk, begin + strip.begin, strip.end - strip.begin);
    }
    at += rows;
  }
}

}  // namespace

extern const KernelEntry conv_strips_kernels[] = {{"conv_strips_f32", conv_strips_f32, nullptr},
                                                  {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS
