#include "graph/closure.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace engine::graph {
namespace {

// Words of a row that are computed at a time: two cache lines, so that the columns of 20,000 nodes fit a core's cache.
constexpr std::size_t kBlock = 16;

}  // namespace

std::size_t Closure::table_bytes(Node nodes) {
  const std::size_t words = (static_cast<std::size_t>(nodes) + 63) / 64;
  // There are 64 rows of each length, except for the last length, one word, which has fewer.
  const std::size_t missing = 64 * words - static_cast<std::size_t>(nodes);
  return (words * (words + 1) / 2 * 64 - missing) * sizeof(std::uint64_t);
}

Closure::Closure(const Dag& dag, std::size_t max_bytes, int threads)
    : dag_(dag), place_(static_cast<std::size_t>(dag.nodes())) {
  for (std::size_t i = 0; i < dag.order().size(); ++i) place_[dag.order()[i]] = static_cast<Node>(i);
  if (table_bytes(dag.nodes()) <= max_bytes) {
    fill(threads);
  } else {
    seen_.assign(place_.size(), 0);
  }
}

std::size_t Closure::bytes() const {
  return words_.size() * sizeof(std::uint64_t) + row_begin_.size() * sizeof(std::size_t) +
         place_.size() * sizeof(Node) + seen_.size() * sizeof(std::uint32_t);
}

void Closure::fill(int threads) {
  row_length_ = (place_.size() + 63) / 64;
  row_begin_.resize(place_.size());
  std::size_t total = 0;
  for (std::size_t place = 0; place < place_.size(); ++place) {
    row_begin_[place] = total;
    total += row_words(static_cast<Node>(place));
  }
  words_.assign(total, 0);
  // Columns are independent, so threads take blocks of them and never wait.
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t first = next.fetch_add(kBlock); first < row_length_; first = next.fetch_add(kBlock)) {
      fill_columns(first, std::min(first + kBlock, row_length_));
    }
  };
  std::vector<std::thread> others;
  const std::size_t blocks = (row_length_ + kBlock - 1) / kBlock;
  for (std::size_t i = 1; i < std::min(static_cast<std::size_t>(std::max(threads, 1)), blocks); ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads can be started: the existing ones do all the work
      break;
    }
  }
  work();
  for (std::thread& other : others) other.join();
}

void Closure::fill_columns(std::size_t first, std::size_t last) {
  const auto places = static_cast<Node>(std::min(place_.size(), last * 64));
  for (Node place = places; place-- > 0;) {
    const std::size_t own = static_cast<std::size_t>(place) / 64;
    auto* const bits = const_cast<std::uint64_t*>(row(place));
    for (const Node successor : dag_.successors(dag_.order()[place])) {
      const Node next = place_[successor];
      const std::size_t word = static_cast<std::size_t>(next) / 64;
      if (word >= last) continue;
      const std::uint64_t* const reached = row(next);
      for (std::size_t i = std::max({first, own, word}); i < last; ++i) bits[i] |= reached[i];
      if (word >= first) bits[word] |= std::uint64_t{1} << (next % 64);
    }
  }
}

bool Closure::reaches(Node from, Node to) const {
  const Node target = place_[to];
  if (place_[from] >= target) return false;
  if (is_dense()) return row(place_[from])[target / 64] >> (target % 64) & 1;
  return search(from, to);
}

bool Closure::search(Node from, Node to) const {
  const std::lock_guard<std::mutex> lock(searching_);
  if (++searches_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    searches_ = 1;
  }
  std::vector<Node> ahead{from};
  while (!ahead.empty()) {
    const Node node = ahead.back();
    ahead.pop_back();
    for (const Node next : dag_.successors(node)) {
      if (next == to) return true;
      if (place_[next] > place_[to] || seen_[next] == searches_) continue;
      seen_[next] = searches_;
      ahead.push_back(next);
    }
  }
  return false;
}

std::vector<Node> Closure::path_nodes(Node from, Node to) const {
  std::vector<Node> found;
  if (place_[from] >= place_[to]) return found;
  if (is_dense()) {
    for (Node place = place_[from] + 1; place < place_[to]; ++place) {
      const Node node = dag_.order()[place];
      if (reaches(from, node) && reaches(node, to)) found.push_back(node);
    }
  } else {
    std::vector<bool> is_after(place_.size());
    std::vector<bool> is_between(place_.size());
    is_after[from] = true;
    is_between[to] = true;
    for (Node place = place_[from] + 1; place < place_[to]; ++place) {
      const Span<Node> before = dag_.predecessors(dag_.order()[place]);
      is_after[dag_.order()[place]] = std::any_of(before.begin(), before.end(), [&](Node n) { return is_after[n]; });
    }
    for (Node place = place_[to] - 1; place > place_[from]; --place) {
      const Node node = dag_.order()[place];
      const Span<Node> next = dag_.successors(node);
      is_between[node] = is_after[node] && std::any_of(next.begin(), next.end(), [&](Node n) { return is_between[n]; });
      if (is_between[node]) found.push_back(node);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace engine::graph
