#include "kernels_reference_common.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/pointwise_scalar.hpp"

namespace engine::reference {

double activate(const EpilogueArgs& epilogue, double a) {
  using namespace scalar;
  const double b = epilogue.alpha, c = epilogue.beta;
  switch (epilogue.activation) {
#define ENGINE_ACTIVATION(Name, name, sources, cost, ...) \
  case Activation::k##Name:                               \
    return __VA_ARGS__;
#include "pointwise.def"
    case Activation::kCount:
      break;
  }
  return a;
}

double finish(const EpilogueArgs& epilogue, double accumulator, const float* scale, const float* bias,
              const float* residual) {
  double value = accumulator * (scale ? *scale : 1.0) + (bias ? *bias : 0.0);
  if (residual && !epilogue.residual_after) value += *residual;
  value = activate(epilogue, value);
  if (residual && epilogue.residual_after) value += *residual;
  return value;
}

void conv_transpose(const ConvShape& s, const EpilogueArgs& epilogue, const float* x, const float* w,
                    const float* scale, const float* bias, const float* residual, float* y) {
  const std::int64_t in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  std::vector<double> sums(static_cast<std::size_t>(s.batch * s.out_channels * s.out_h * s.out_w));
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t c = 0; c < s.in_channels; ++c)
      for (std::int64_t m = 0; m < out_group; ++m)
        for (std::int64_t i = 0; i < s.in_h * s.in_w * s.kernel_h * s.kernel_w; ++i) {
          const std::int64_t tap = i % (s.kernel_h * s.kernel_w), pixel = i / (s.kernel_h * s.kernel_w);
          const std::int64_t oh = pixel / s.in_w * s.stride_h - s.pad_top + tap / s.kernel_w * s.dilation_h;
          const std::int64_t ow = pixel % s.in_w * s.stride_w - s.pad_left + tap % s.kernel_w * s.dilation_w;
          if (oh < 0 || oh >= s.out_h || ow < 0 || ow >= s.out_w) continue;
          const std::int64_t channel = c / in_group * out_group + m;
          sums[static_cast<std::size_t>(((n * s.out_channels + channel) * s.out_h + oh) * s.out_w + ow)] +=
              double{x[(n * s.in_channels + c) * s.in_h * s.in_w + pixel]} *
              w[(c * out_group + m) * s.kernel_h * s.kernel_w + tap];
        }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t channel =
        i / static_cast<std::size_t>(s.out_h * s.out_w) % static_cast<std::size_t>(s.out_channels);
    y[i] = static_cast<float>(finish(epilogue, sums[i], scale ? scale + channel : nullptr,
                                     bias ? bias + channel : nullptr, residual ? residual + i : nullptr));
  }
}

// The output positions for which position * stride + offset lies in the input.
struct Positions {
  std::int64_t begin, end;
};

static Positions inside(std::int64_t offset, std::int64_t stride, std::int64_t in, std::int64_t out) {
  Positions found = {0, out};
  while (found.begin < found.end && found.begin * stride + offset < 0) ++found.begin;
  while (found.begin < found.end && (found.end - 1) * stride + offset >= in) --found.end;
  return found;
}

void conv(const ConvShape& s, const EpilogueArgs& epilogue, const float* x, const float* w, const float* scale,
          const float* bias, const float* residual, float* y) {
  const std::int64_t in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  std::vector<double> sums(s.out_h * s.out_w);
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t m = 0; m < s.out_channels; ++m) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t c = 0; c < in_group; ++c)
        for (std::int64_t kh = 0; kh < s.kernel_h; ++kh)
          for (std::int64_t kw = 0; kw < s.kernel_w; ++kw) {
            const std::int64_t down = kh * s.dilation_h - s.pad_top, across = kw * s.dilation_w - s.pad_left;
            const Positions rows = inside(down, s.stride_h, s.in_h, s.out_h);
            const Positions columns = inside(across, s.stride_w, s.in_w, s.out_w);
            const double weight = w[((m * in_group + c) * s.kernel_h + kh) * s.kernel_w + kw];
            const float* map = x + (n * s.in_channels + m / out_group * in_group + c) * s.in_h * s.in_w;
            for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
              const float* from = map + (oh * s.stride_h + down) * s.in_w + across;
              double* to = sums.data() + oh * s.out_w;
              for (std::int64_t ow = columns.begin; ow < columns.end; ++ow) to[ow] += weight * from[ow * s.stride_w];
            }
          }
      for (std::int64_t pixel = 0; pixel < s.out_h * s.out_w; ++pixel) {
        const std::int64_t at = (n * s.out_channels + m) * s.out_h * s.out_w + pixel;
        y[at] = static_cast<float>(finish(epilogue, sums[pixel], scale ? scale + m : nullptr, bias ? bias + m : nullptr,
                                          residual ? residual + at : nullptr));
      }
    }
}

std::vector<float> to_blocked(const std::vector<float>& plain, std::int64_t n, std::int64_t c, std::int64_t hw,
                              float fill) {
  const std::int64_t blocks = (c + 15) / 16;
  std::vector<float> blocked(n * blocks * hw * 16, fill);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t k = 0; k < c; ++k)
      for (std::int64_t p = 0; p < hw; ++p)
        blocked[((i * blocks + k / 16) * hw + p) * 16 + k % 16] = plain[(i * c + k) * hw + p];
  return blocked;
}

std::vector<float> from_blocked(const std::vector<float>& blocked, std::int64_t n, std::int64_t c, std::int64_t hw) {
  const std::int64_t blocks = (c + 15) / 16;
  std::vector<float> plain(n * c * hw);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t k = 0; k < c; ++k)
      for (std::int64_t p = 0; p < hw; ++p)
        plain[(i * c + k) * hw + p] = blocked[((i * blocks + k / 16) * hw + p) * 16 + k % 16];
  return plain;
}

}  // namespace engine::reference
