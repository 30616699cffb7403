#include "kernels/prepare/image_steps.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// A step and the images to divide it into; `made` begins with the step's attributes and operands that are shared.
struct Division {
  const Attributes& attributes;
  const std::vector<std::size_t>&inputs, &outputs;
  std::int64_t batch, images;
  ImageStep made;

  // An operand in which the images follow one another without gaps, and whose size is `elements` of up to 8 bytes.
  bool divide(OperandImage& operand, std::size_t bytes, std::int64_t elements) const {
    if (elements <= 0 || elements % batch != 0) return false;
    const auto count = static_cast<std::size_t>(elements);
    const std::size_t element = bytes / count;
    if (element * count != bytes || (element != 1 && element != 2 && element != 4 && element != 8)) return false;
    operand.bytes = operand.step = bytes / static_cast<std::size_t>(batch);
    return true;
  }

  // A map of `image` elements of 1, 2 or 4 bytes; attribute `step` has the elements from an image to the next, if that
  // is more.
  bool divide_map(OperandImage& operand, std::size_t bytes, std::int64_t image, std::string_view step) const {
    if (image <= 0) return false;
    const std::int64_t elements = attributes.integer_or(step, image);
    if (elements < image) return false;
    for (const std::int64_t element : {1, 2, 4}) {
      if (bytes != checked_product({checked_end(batch, elements, image), element})) continue;
      operand.bytes = static_cast<std::size_t>(image * element);
      operand.step = static_cast<std::size_t>(elements * element);
      return true;
    }
    return false;
  }

  void set_share(const std::string& name) { made.attributes.set(name, attributes.integer(name) / batch * images); }

 private:
  static std::int64_t checked_end(std::int64_t batch, std::int64_t step, std::int64_t image) {
    return static_cast<std::int64_t>(checked_add(checked_product({batch - 1, step}), checked_product({image})));
  }
};

using DivideFn = bool (*)(Division& step);

std::int64_t padded(std::int64_t channels) {
  return (channels + 15) / 16 * 16;
}

std::int64_t map_elements(const Attributes& attributes, const char* channels, const char* size, bool is_plain) {
  const std::int64_t count = attributes.integer(channels, 1, std::int64_t{1} << 30);
  const std::vector<std::int64_t>& sides = attributes.integers(size, 2, 0, std::int64_t{1} << 30);
  return static_cast<std::int64_t>(checked_product({is_plain ? count : padded(count), sides[0], sides[1]}));
}

// The maps of a convolution or pooling: x first, a residual last.
bool divide_window(Division& step, bool is_plain) {
  if (step.attributes.integer("batch") != step.batch) return false;
  step.set_share("batch");
  const std::int64_t y_image = map_elements(step.attributes, "out_channels", "out", false);
  if (step.attributes.has("residual") && step.attributes.flag("residual") &&
      !step.divide_map(step.made.inputs.back(), step.inputs.back(), y_image, "residual_batch"))
    return false;
  return step.divide_map(step.made.inputs.front(), step.inputs.front(),
                         map_elements(step.attributes, "in_channels", "in", is_plain), "x_batch") &&
         step.divide_map(step.made.outputs.front(), step.outputs.front(), y_image, "y_batch");
}

bool divide_blocked(Division& step) {
  return divide_window(step, false);
}

bool divide_planar(Division& step) {
  return divide_window(step, true);
}

bool divide_strips(Division& step) {
  std::string first = "filter_", last = "filter_";
  if (step.attributes.has("expand_batch")) first = "expand_";
  if (step.attributes.has("project_batch")) last = "project_";
  for (const std::string prefix : {"expand_", "filter_", "project_"}) {
    if (!step.attributes.has(prefix + "batch")) continue;
    if (step.attributes.integer(prefix + "batch") != step.batch) return false;
    step.set_share(prefix + "batch");
  }
  const std::int64_t y_image =
      map_elements(step.attributes, (last + "out_channels").c_str(), (last + "out").c_str(), false);
  const std::string residual = last + "residual";
  if (step.attributes.has(residual) && step.attributes.flag(residual) &&
      !step.divide_map(step.made.inputs.back(), step.inputs.back(), y_image, ""))
    return false;
  const std::int64_t x_image =
      map_elements(step.attributes, (first + "in_channels").c_str(), (first + "in").c_str(), false);
  return step.divide_map(step.made.inputs.front(), step.inputs.front(), x_image, "") &&
         step.divide_map(step.made.outputs.front(), step.outputs.front(), y_image, "");
}

// Normalizations of channels: x is the only input that images do not share.
bool divide_channels(Division& step) {
  if (step.attributes.integer("batch") != step.batch) return false;
  step.set_share("batch");
  const std::int64_t channels = step.attributes.integer("channels", 1, std::int64_t{1} << 30);
  const std::int64_t pixels = step.attributes.integer("pixels", 1, std::int64_t{1} << 40);
  const auto elements = static_cast<std::int64_t>(
      checked_product({step.batch, step.attributes.flag("blocked") ? padded(channels) : channels, pixels}));
  return step.divide(step.made.inputs.front(), step.inputs.front(), elements) &&
         step.divide(step.made.outputs.front(), step.outputs.front(), elements);
}

bool divide_elementwise(Division& step) {
  std::vector<std::int64_t> dims = step.attributes.integers("dims");
  const std::vector<std::int64_t>& strides = step.attributes.integers("input_strides");
  const std::vector<std::int64_t>& types = step.attributes.integers("input_types");
  if (dims.empty() || dims[0] <= 0 || dims[0] % step.batch != 0 || strides.size() != dims.size() * types.size())
    return false;
  const auto elements = static_cast<std::int64_t>(checked_product(dims));
  dims[0] /= step.batch;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::int64_t* stride = strides.data() + i * dims.size();
    std::int64_t end = 1;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (stride[d] < 0) return false;
      end += (dims[d] - 1) * stride[d];
    }
    if (stride[0] == 0) continue;
    const std::int64_t element = element_bytes(static_cast<ElementCode>(types[i])), image = stride[0] * dims[0];
    if (image < end || step.inputs[i] != checked_product({image, step.batch, element})) return false;
    step.made.inputs[i].bytes = step.made.inputs[i].step = checked_product({image, element});
  }
  for (std::size_t i = 0; i < step.outputs.size(); ++i) {
    if (!step.divide(step.made.outputs[i], step.outputs[i], elements)) return false;
  }
  dims[0] *= step.images;
  step.made.attributes.set("dims", std::move(dims));
  return true;
}

bool divide_copy(Division& step) {
  const auto element = static_cast<std::size_t>(step.attributes.integer("element_bytes", 1, 8));
  std::vector<std::int64_t> shape = step.attributes.integers("shape");
  const std::vector<std::int64_t>& source = step.attributes.integers("source_strides");
  const std::vector<std::int64_t>& destination = step.attributes.integers("destination_strides");
  const std::vector<std::int64_t> operands =
      step.attributes.has("operands") ? step.attributes.integers("operands") : std::vector<std::int64_t>(4, 0);
  const std::size_t copies = operands.size() / 4;
  if (copies == 0 || shape.empty() || shape.size() % copies != 0 || source.size() != shape.size() ||
      destination.size() != shape.size())
    return false;
  const auto divide = [&](OperandImage& operand, std::size_t bytes, std::int64_t step_elements) {
    const auto part = static_cast<std::size_t>(step_elements) * element;
    if (step_elements <= 0 || part * static_cast<std::size_t>(step.batch) != bytes) return false;
    if (operand.step != 0 && operand.step != part) return false;
    operand.bytes = operand.step = part;
    return true;
  };
  const std::size_t rank = shape.size() / copies;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    std::int64_t& images = shape[copy * rank];
    if (images <= 0 || images % step.batch != 0) return false;
    images /= step.batch;
    const auto input = static_cast<std::size_t>(operands[4 * copy]);
    const auto output = static_cast<std::size_t>(operands[4 * copy + 1]);
    if (input >= step.inputs.size() || output >= step.outputs.size() ||
        !divide(step.made.inputs[input], step.inputs[input], source[copy * rank] * images) ||
        !divide(step.made.outputs[output], step.outputs[output], destination[copy * rank] * images))
      return false;
    // All that a copy accesses must lie in its image.
    std::int64_t read = operands[4 * copy + 2] + 1, written = operands[4 * copy + 3] + 1;
    for (std::size_t d = 0; d < rank; ++d) {
      const std::size_t at = copy * rank + d;
      if (source[at] < 0 || destination[at] < 0) return false;
      read += source[at] * (shape[at] - 1);
      written += destination[at] * (shape[at] - 1);
    }
    if (static_cast<std::size_t>(read) * element > step.made.inputs[input].bytes ||
        static_cast<std::size_t>(written) * element > step.made.outputs[output].bytes)
      return false;
    images *= step.images;
  }
  step.made.attributes.set("shape", std::move(shape));
  return true;
}

bool divide_reduce(Division& step) {
  std::vector<std::int64_t> shape = step.attributes.integers("shape");
  const std::vector<std::int64_t>& axes = step.attributes.integers("axes");
  if (shape.empty() || shape[0] <= 0 || shape[0] % step.batch != 0) return false;
  std::int64_t kept = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto axis = static_cast<std::int64_t>(d), rank = static_cast<std::int64_t>(shape.size());
    const bool is_reduced =
        std::any_of(axes.begin(), axes.end(), [&](std::int64_t each) { return each == axis || each == axis - rank; });
    if (d == 0 && is_reduced) return false;
    if (!is_reduced) kept *= shape[d];
  }
  if (!step.divide(step.made.inputs[0], step.inputs[0], static_cast<std::int64_t>(checked_product(shape))) ||
      !step.divide(step.made.outputs[0], step.outputs[0], kept))
    return false;
  shape[0] = shape[0] / step.batch * step.images;
  step.made.attributes.set("shape", std::move(shape));
  step.made.in_one_phase = true;
  return true;
}

bool divide_resize(Division& step) {
  const std::int64_t maps = step.attributes.integer("maps", 0, std::int64_t{1} << 40);
  const std::int64_t inner = step.attributes.integer("inner", 1, std::int64_t{1} << 30);
  const auto elements = [&](const char* size) {
    const std::vector<std::int64_t>& sides = step.attributes.integers(size);
    return static_cast<std::int64_t>(checked_product({maps, sides[0], sides[1], inner}));
  };
  if (maps % step.batch != 0 || step.attributes.integers("in").size() != 2 ||
      step.attributes.integers("out").size() != 2)
    return false;
  step.set_share("maps");
  return step.divide(step.made.inputs[0], step.inputs[0], elements("in")) &&
         step.divide(step.made.outputs[0], step.outputs[0], elements("out"));
}

const std::map<std::string, DivideFn>& divisions() {
  static const std::map<std::string, DivideFn> table = {
      {"conv_blocked_f32", divide_blocked},  {"conv_planar_f32", divide_planar},
      {"winograd_f32", divide_blocked},      {"depthwise_f32", divide_blocked},
      {"conv_strips_f32", divide_strips},    {"conv_blocked_bf16", divide_blocked},
      {"conv_planar_bf16", divide_planar},   {"winograd_bf16", divide_blocked},
      {"depthwise_bf16", divide_blocked},    {"max_pool_f32", divide_blocked},
      {"average_pool_f32", divide_blocked},  {"max_pool_bf16", divide_blocked},
      {"average_pool_bf16", divide_blocked}, {"max_pool_u8", divide_blocked},
      {"max_pool_i8", divide_blocked},       {"channel_norm_f32", divide_channels},
      {"scale_shift_f32", divide_channels},  {"elementwise", divide_elementwise},
      {"strided_copy", divide_copy},         {"reduce", divide_reduce},
      {"resize_f32", divide_resize},         {"resize_nearest", divide_resize},
  };
  return table;
}

}  // namespace

std::optional<ImageStep> image_step(const std::string& operation, const Attributes& attributes,
                                    const std::vector<std::size_t>& inputs, const std::vector<std::size_t>& outputs,
                                    std::int64_t batch, std::int64_t images) {
  const auto found = divisions().find(operation);
  if (found == divisions().end() || batch < 2 || inputs.empty() || outputs.empty()) return std::nullopt;
  Division step{attributes, inputs, outputs, batch, images, {attributes, {}, {}}};
  for (const std::size_t bytes : inputs) step.made.inputs.push_back({bytes});
  for (const std::size_t bytes : outputs) step.made.outputs.push_back({bytes});
  if (!found->second(step)) return std::nullopt;
  return std::move(step.made);
}

std::int64_t images_of(const std::string& operation, const Attributes& attributes) {
  const auto found = divisions().find(operation);
  if (found == divisions().end()) return 0;
  if (operation == "conv_strips_f32") return attributes.integer("filter_batch");
  const bool has_windows = found->second == divide_blocked || found->second == divide_planar;
  return has_windows ? attributes.integer("batch") : 0;
}

}  // namespace engine
