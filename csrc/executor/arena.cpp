#include "executor/arena.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/prepare.hpp"

namespace engine {
namespace {

struct Placed {
  std::size_t begin;
  std::size_t end;
  int first;
  int last;
};

std::size_t align_up(std::size_t offset, std::size_t alignment) {
  return checked_add(offset, alignment - 1) & ~(alignment - 1);
}

// The start of the smallest fitting gap between the buffers that are alive at the same time, or the end of the last.
std::size_t find_offset(const Lifetime& buffer, const std::vector<Placed>& placed_by_begin) {
  std::size_t best = 0, best_gap = std::numeric_limits<std::size_t>::max(), end = 0;
  for (const Placed& other : placed_by_begin) {
    if (other.last < buffer.first || buffer.last < other.first) continue;
    const std::size_t at = align_up(end, buffer.alignment);
    if (other.begin >= at && other.begin - at >= buffer.bytes && other.begin - at < best_gap) {
      best = at;
      best_gap = other.begin - at;
    }
    end = std::max(end, other.end);
  }
  return best_gap == std::numeric_limits<std::size_t>::max() ? align_up(end, buffer.alignment) : best;
}

std::size_t most_alive(const std::vector<Lifetime>& buffers) {
  std::map<int, std::pair<std::size_t, std::size_t>> changes;  // time -> bytes allocated, bytes freed before it
  for (const Lifetime& buffer : buffers) {
    auto& come = changes[buffer.first].first;
    come = checked_add(come, buffer.bytes);
    auto& gone = changes[buffer.last + 1].second;
    gone = checked_add(gone, buffer.bytes);
  }
  std::size_t alive = 0, most = 0;
  for (const auto& [time, change] : changes) {
    alive = checked_add(alive - change.second, change.first);
    most = std::max(most, alive);
  }
  return most;
}

}  // namespace

ArenaLayout lay_out_arena(const std::vector<Lifetime>& buffers) {
  ArenaLayout layout;
  layout.offsets.resize(buffers.size(), 0);
  layout.lower_bound_bytes = most_alive(buffers);
  for (const Lifetime& buffer : buffers) {
    layout.alignment = std::max(layout.alignment, buffer.alignment);
    layout.naive_bytes = checked_add(align_up(layout.naive_bytes, buffer.alignment), buffer.bytes);
  }
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::vector<Placed> placed;
  placed.reserve(buffers.size());
  for (const std::size_t index : order) {
    const Lifetime& buffer = buffers[index];
    if (buffer.bytes == 0) break;  // all following buffers are empty, too
    const std::size_t begin = find_offset(buffer, placed);
    const std::size_t end = checked_add(begin, buffer.bytes);
    const auto at = std::upper_bound(placed.begin(), placed.end(), begin,
                                     [](std::size_t value, const Placed& other) { return value < other.begin; });
    placed.insert(at, Placed{begin, end, buffer.first, buffer.last});
    layout.offsets[index] = begin;
    layout.total_bytes = std::max(layout.total_bytes, end);
  }
  return layout;
}

}  // namespace engine
