// Chains of convolutions by strips of rows against a scalar reference: windows, paddings, strips, workers, tails.
#include <cmath>
#include <limits>

#include "kernels_operation_common.hpp"
#include "kernels_reference_common.hpp"

namespace engine {
extern const OperationEntry conv_operations[];
extern const OperationEntry depthwise_operations[];
extern const OperationEntry conv_strips_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Integers = std::vector<std::int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Chain {
  std::int64_t in_channels = 8, channels = 40, out_channels = 24;  // in_channels, out_channels 0: no convolution there
  std::int64_t h = 11, w = 9, kernel = 3, stride = 1, dilation = 1;
  Integers pads = {1, 1, 1, 1};  // top, left, bottom, right
  std::int64_t batch = 1;
  bool residual = false;
  EpilogueArgs epilogue = {Activation::kClip, 0.0f, 0.4f, false};  // of all convolutions
  std::int64_t rows = 0;                                           // of a strip; 0: chosen by size
  int workers = 3;
};

std::string describe(const Chain& c) {
  return "n" + std::to_string(c.batch) + " c" + std::to_string(c.in_channels) + "->" + std::to_string(c.channels) +
         "->" + std::to_string(c.out_channels) + " in" + std::to_string(c.h) + "x" + std::to_string(c.w) + " k" +
         std::to_string(c.kernel) + " s" + std::to_string(c.stride) + " d" + std::to_string(c.dilation) + " p" +
         std::to_string(c.pads[0]) + "," + std::to_string(c.pads[2]) + " act" +
         std::to_string(static_cast<int>(c.epilogue.activation)) + " res" + std::to_string(c.residual) + " rows" +
         std::to_string(c.rows) + " workers" + std::to_string(c.workers);
}

std::int64_t out_size(const Chain& c, std::int64_t size, std::int64_t pads) {
  const std::int64_t span = size + pads - c.dilation * (c.kernel - 1) - 1;
  return span < 0 ? 0 : span / c.stride + 1;
}

// One convolution with its plain operands. Weights are scaled so that values keep their magnitude along a chain.
struct Stage {
  const char* prefix;
  ConvShape shape;
  ConvOperands operands;
  std::vector<float> w, bias;

  std::int64_t reduction() const { return shape.in_channels / shape.groups * shape.kernel_h * shape.kernel_w; }
};

Stage stage(const char* prefix, const ConvShape& shape, bool has_residual, std::uint32_t seed) {
  Stage made{prefix, shape, {true, false, has_residual}, {}, random_floats(shape.out_channels, seed)};
  made.w = random_floats(shape.out_channels * made.reduction(), seed + 1);
  for (float& value : made.w) value /= std::sqrt(static_cast<float>(made.reduction()));
  return made;
}

ConvShape shape_of(const Chain& c, std::int64_t in, std::int64_t out, std::int64_t h, std::int64_t w) {
  ConvShape s;
  s.batch = c.batch;
  s.in_channels = in;
  s.out_channels = out;
  s.in_h = s.out_h = h;
  s.in_w = s.out_w = w;
  return s;
}

std::vector<Stage> stages_of(const Chain& c) {
  ConvShape filter = shape_of(c, c.channels, c.channels, c.h, c.w);
  filter.groups = c.channels;
  filter.out_h = out_size(c, c.h, c.pads[0] + c.pads[2]);
  filter.out_w = out_size(c, c.w, c.pads[1] + c.pads[3]);
  filter.kernel_h = filter.kernel_w = c.kernel;
  filter.stride_h = filter.stride_w = c.stride;
  filter.dilation_h = filter.dilation_w = c.dilation;
  filter.pad_top = c.pads[0];
  filter.pad_left = c.pads[1];
  std::vector<Stage> stages;
  if (c.in_channels > 0)
    stages.push_back(stage("expand_", shape_of(c, c.in_channels, c.channels, c.h, c.w), false, 10));
  stages.push_back(stage("filter_", filter, c.residual && c.out_channels == 0, 20));
  if (c.out_channels > 0) {
    const ConvShape project = shape_of(c, c.channels, c.out_channels, filter.out_h, filter.out_w);
    stages.push_back(stage("project_", project, c.residual, 30));
  }
  return stages;
}

AttributeMap geometry(const ConvShape& s) {
  return {{"batch", s.batch},
          {"groups", s.groups},
          {"in_channels", s.in_channels},
          {"out_channels", s.out_channels},
          {"in", Integers{s.in_h, s.in_w}},
          {"out", Integers{s.out_h, s.out_w}},
          {"kernel", Integers{s.kernel_h, s.kernel_w}},
          {"strides", Integers{s.stride_h, s.stride_w}},
          {"dilations", Integers{s.dilation_h, s.dilation_w}},
          {"pads", Integers{s.pad_top, s.pad_left, 0, 0}}};
}

AttributeMap attributes_of(const Chain& c, const std::vector<Stage>& stages) {
  AttributeMap all;
  if (c.rows > 0) all["strip_rows"] = c.rows;
  for (const Stage& each : stages) {
    AttributeMap own = geometry(each.shape);
    own["bias"] = std::int64_t{each.operands.has_bias};
    own["residual"] = std::int64_t{each.operands.has_residual};
    if (c.epilogue.activation == Activation::kClip) {
      own["alpha"] = static_cast<double>(c.epilogue.alpha);
      own["beta"] = static_cast<double>(c.epilogue.beta);
    } else {
      own["activation"] = std::string("swish");
      own["alpha"] = 1.0;
    }
    own["residual_after"] = std::int64_t{c.epilogue.residual_after};
    for (const auto& [name, value] : own) all[each.prefix + name] = value;
  }
  return all;
}

Guarded packed(const Target& target, const Stage& stage) {
  const bool is_depthwise = stage.shape.groups > 1;
  const AttributeMap attributes = geometry(stage.shape);
  const std::int64_t floats = (stage.shape.out_channels + 15) / 16 * 16 * stage.reduction();
  Guarded source(stage.w), result(floats, kNan);
  run_operation(target, is_depthwise ? depthwise_operations : conv_operations,
                is_depthwise ? "pack_depthwise_f32" : "pack_conv_blocked_f32", attributes, {&source}, {&result}, 1);
  return result;
}

void check(const Target& target, const Chain& c) {
  const std::vector<Stage> stages = stages_of(c);
  const ConvShape &first = stages.front().shape, &last = stages.back().shape;
  const std::int64_t in_hw = first.in_h * first.in_w, out_hw = last.out_h * last.out_w;
  const auto x = random_floats(c.batch * first.in_channels * in_hw, 1);
  const auto residual = random_floats(c.batch * last.out_channels * out_hw, 2);
  std::vector<float> expected = x;
  double tolerance = 0.0;
  for (const Stage& each : stages) {
    const ConvShape& s = each.shape;
    std::vector<float> y(s.batch * s.out_channels * s.out_h * s.out_w);
    reference::conv(s, c.epilogue, expected.data(), each.w.data(), nullptr, each.bias.data(),
                    each.operands.has_residual ? residual.data() : nullptr, y.data());
    expected = std::move(y);
    tolerance += sum_tolerance(each.reduction());
  }

  // Channels beyond the maps' are NaN, which must not reach a result.
  std::vector<Guarded> buffers;
  buffers.emplace_back(reference::to_blocked(x, c.batch, first.in_channels, in_hw, kNan));
  for (const Stage& each : stages) {
    buffers.push_back(packed(target, each));
    std::vector<float> bias = each.bias;
    bias.resize((bias.size() + 15) / 16 * 16, kNan);
    buffers.emplace_back(bias);
  }
  if (c.residual) buffers.emplace_back(reference::to_blocked(residual, c.batch, last.out_channels, out_hw, kNan));
  std::vector<Guarded*> inputs;
  for (Guarded& buffer : buffers) inputs.push_back(&buffer);
  Guarded output(c.batch * ((last.out_channels + 15) / 16 * 16) * out_hw, kNan);
  run_operation(target, conv_strips_operations, "conv_strips_f32", attributes_of(c, stages), inputs, {&output},
                c.workers);
  expect(output.intact(), describe(c) + ": overrun");
  expect_close(expected, reference::from_blocked(output.values(), c.batch, last.out_channels, out_hw), tolerance,
               describe(c));
}

// All chains of two and three.
std::vector<Chain> with_parts(const Chain& chain) {
  std::vector<Chain> chains(3, chain);
  chains[1].out_channels = 0;
  chains[2].in_channels = 0;
  return chains;
}

void windows(const Target& target) {
  for (const std::int64_t kernel : {1, 2, 3, 5, 7})
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t dilation : {1, 2})
        for (const Integers& pads : {Integers{0, 0, 0, 0}, {1, 1, 1, 1}, {0, 0, 1, 1}, {3, 2, 0, 1}, {2, 0, 5, 3}}) {
          Chain chain;
          chain.kernel = kernel;
          chain.stride = stride;
          chain.dilation = dilation;
          chain.pads = pads;
          chain.rows = 2;
          if (out_size(chain, chain.h, pads[0] + pads[2]) < 2 || out_size(chain, chain.w, pads[1] + pads[3]) < 1)
            continue;
          for (const Chain& each : with_parts(chain)) check(target, each);
        }
}

void strips_and_workers(const Target& target) {
  for (const std::int64_t stride : {1, 2})
    for (std::int64_t rows = 0; rows <= 6; ++rows)
      for (int workers = 1; workers <= 7; ++workers) {
        Chain chain;
        chain.stride = stride;
        chain.rows = rows;
        chain.workers = workers;
        chain.batch = 2;
        for (const Chain& each : with_parts(chain)) check(target, each);
      }
}

void channel_tails(const Target& target) {
  for (const std::int64_t in_channels : {1, 16, 17})
    for (const std::int64_t channels : {2, 16, 31, 65})
      for (const std::int64_t out_channels : {1, 16, 33}) {
        Chain chain;
        chain.in_channels = in_channels;
        chain.channels = channels;
        chain.out_channels = out_channels;
        chain.rows = 3;
        for (const Chain& each : with_parts(chain)) check(target, each);
      }
}

void residuals_and_activations(const Target& target) {
  for (const Activation activation : {Activation::kClip, Activation::kSwish})
    for (const bool after : {false, true})
      for (const std::int64_t batch : {1, 3}) {
        Chain chain;
        chain.epilogue = {activation, activation == Activation::kClip ? 0.0f : 1.0f, 0.4f, after};
        chain.residual = true;
        chain.batch = batch;
        chain.rows = 4;
        for (const Chain& each : with_parts(chain)) check(target, each);
      }
}

// More than one strip by the choice of size.
void large(const Target& target) {
  Chain chain;
  chain.in_channels = 16;
  chain.channels = 96;
  chain.h = 40;
  chain.w = 50;
  for (const std::int64_t stride : {1, 2}) {
    chain.stride = stride;
    for (const Chain& each : with_parts(chain)) check(target, each);
  }
}

void empty(const Target& target) {
  Chain chain;
  chain.batch = 0;
  for (const Chain& each : with_parts(chain)) check(target, each);
  chain.batch = 1;
  chain.h = 1;
  chain.pads = {0, 1, 0, 1};  // no output row
  for (const Chain& each : with_parts(chain)) check(target, each);
}

void refusals(const Target& target) {
  const Chain chain;
  const std::vector<Stage> stages = stages_of(chain);
  const AttributeMap attributes = attributes_of(chain, stages);
  const std::vector<std::size_t> inputs(7, 1 << 20), outputs{1 << 20};
  const auto refused = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    AttributeMap changed = attributes;
    changed[name] = value;
    expect_refused(target, conv_strips_operations, "conv_strips_f32", changed, inputs, outputs, message);
  };
  refused("expand_kernel", Integers{3, 3}, "\"expand_\" is not a 1x1 convolution");
  refused("project_strides", Integers{2, 2}, "\"project_\" is not a 1x1 convolution");
  refused("filter_groups", std::int64_t{1}, "expected as many of each");
  refused("expand_out_channels", std::int64_t{39}, "reads [1, 40, 11, 9], but the one before it writes [1, 39, 11, 9]");
  refused("project_batch", std::int64_t{2}, "reads [2, 40, 11, 9]");
  refused("expand_residual", std::int64_t{1}, "before the last has a residual");
  refused("filter_residual", std::int64_t{1}, "before the last has a residual");
  refused("project_residual", std::int64_t{1}, "7 inputs; expected 8");
  refused("strip_rows", std::int64_t{12}, "\"strip_rows\" is 12; expected 1 to 11");
  refused("filter_colour", std::int64_t{1}, "\"colour\" is not one of this kernel");
  refused("colour", std::int64_t{1}, "\"colour\" is not one of this kernel");
  expect_refused(target, conv_strips_operations, "conv_strips_f32", attributes, std::vector<std::size_t>(7, 64),
                 outputs, "input 0 has 64 bytes");
  expect_refused(target, conv_strips_operations, "conv_strips_f32", attributes, inputs, {64}, "output 0 has 64 bytes");
}

}  // namespace

int main() {
  return run_cases({{"windows", windows},
                    {"strips and workers", strips_and_workers},
                    {"channel tails", channel_tails},
                    {"residuals and activations", residuals_and_activations},
                    {"large", large},
                    {"empty", empty},
                    {"refusals", refusals}},
                   {"conv_blocked_f32", "depthwise_f32"});
}
