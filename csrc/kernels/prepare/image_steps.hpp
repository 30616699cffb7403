// Which steps compute each image of a batch by itself, and what of their operands belongs to one image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/prepare.hpp"

namespace engine {

// The part of an operand that belongs to one image.
struct OperandImage {
  std::size_t bytes;
  std::size_t step = 0;  // bytes from an image to the next; 0: all images share the operand, of which `bytes` is all
};

// A step of some images of a batch.
struct ImageStep {
  Attributes attributes;  // of the step for as many images
  std::vector<OperandImage> inputs, outputs;
  bool in_one_phase = false;  // with more phases, the results of a slice may have other last bits than the batch's
};

// The step for `images` of the `batch` images that the given step computes, or none if it cannot be divided: each image
// of its results must depend only on the same image of its operands, and be a range of bytes. `images` divides `batch`.
std::optional<ImageStep> image_step(const std::string& operation, const Attributes& attributes,
                                    const std::vector<std::size_t>& inputs, const std::vector<std::size_t>& outputs,
                                    std::int64_t batch, std::int64_t images);

// The number of images that a convolution or pooling computes; 0 for other steps.
std::int64_t images_of(const std::string& operation, const Attributes& attributes);

}  // namespace engine
