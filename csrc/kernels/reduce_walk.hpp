// Which elements of a tensor a reduction combines. Included by kernel files only.
#pragma once

#include <cmath>

#include "kernels/reduce.hpp"
#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Iterates over the offsets of several dimensions, the last one fastest.
struct Odometer {
  const ReduceDims* dims;
  std::int32_t rank;
  std::int64_t index[kReduceDims];
  std::int64_t offset;

  void start(const ReduceDims& all, std::int32_t count, std::int64_t position) {
    dims = &all;
    rank = count;
    offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
      index[d] = position == 0 ? 0 : position % all.size[d];  // a size can be 0
      position = position == 0 ? 0 : position / all.size[d];
      offset += index[d] * all.stride[d];
    }
  }
  void next() {
    for (int d = rank - 1; d >= 0; --d) {
      offset += dims->stride[d];
      if (++index[d] < dims->size[d]) return;
      offset -= dims->size[d] * dims->stride[d];
      index[d] = 0;
    }
  }
};

// The elements of one output: `lines` (offsets over all reduced axes but the last) of `count` elements.
struct Share {
  ReduceDims dims;
  std::int64_t begin;  // offset of the first element
  std::int64_t lines;
  std::int64_t count, stride;  // within a line
};

Share make_share(const ReduceArgs& args, std::int64_t part) {
  Share share = {args.reduced, 0, 1, 0, 0};
  if (args.parts > 1) {
    const WorkRange range =
        split_work(share.dims.size[args.split], static_cast<int>(part), static_cast<int>(args.parts));
    share.dims.size[args.split] = range.end - range.begin;
    share.begin = range.begin * share.dims.stride[args.split];
  }
  const int last = share.dims.rank - 1;
  for (int d = 0; d < last; ++d) share.lines *= share.dims.size[d];
  share.count = share.dims.size[last];
  share.stride = share.dims.stride[last];
  return share;
}

ENGINE_INLINE double finished(const ReduceArgs& args, double value) {
  switch (args.finish) {
    case ReduceFinish::kNone:
      break;
    case ReduceFinish::kDivide:
      return value / static_cast<double>(args.count);
    case ReduceFinish::kSquareRoot:
      return sqrt(value);
    case ReduceFinish::kLog:
      return log(value);
  }
  return value;
}

WorkRange items(const ReduceArgs& args, const KernelContext& context) {
  const std::int64_t tiles = (args.columns + kReduceTile - 1) / kReduceTile;
  return split_work(args.outputs * args.parts * tiles, context.worker, context.workers);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS
