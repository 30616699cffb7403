#include "graph/published/self_references.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/closure.hpp"

namespace engine::graph {
namespace {

using Word = std::uint64_t;
constexpr std::size_t kBits = 64;

constexpr std::size_t word_of(std::size_t bit) {
  return bit / kBits;
}
constexpr Word mask_of(std::size_t bit) {
  return Word{1} << (bit % kBits);
}
bool has(const std::vector<Word>& set, std::size_t bit) {
  return (set[word_of(bit)] & mask_of(bit)) != 0;
}

// Transposes 64 rows of 64 bits, by exchanging halves of ever smaller squares.
void transpose(Word (&rows)[kBits]) {
  Word mask = 0xFFFFFFFF;
  for (std::size_t half = kBits / 2; half > 0; half /= 2, mask ^= mask << half) {
    for (std::size_t i = 0; i < kBits; i = (i + half + 1) & ~half) {
      const Word moved = (rows[i] >> half ^ rows[i + half]) & mask;
      rows[i] ^= moved << half;
      rows[i + half] ^= moved;
    }
  }
}

// The reverse closure: the nodes that reach each node, by position. Rows have the words 0..place/64.
class ReverseClosure {
 public:
  ReverseClosure(const Closure& closure, std::size_t nodes) : begin_(nodes) {
    std::size_t total = 0;
    for (std::size_t at = 0; at < nodes; ++at) {
      begin_[at] = total;
      total += word_of(at) + 1;
    }
    bits_.resize(total);
    for (std::size_t down = 0; down < closure.row_length(); ++down) {
      for (std::size_t across = down; across < closure.row_length(); ++across) {
        Word square[kBits] = {};
        for (std::size_t i = 0; i < std::min(kBits, nodes - down * kBits); ++i) {
          square[i] = closure.row(static_cast<Node>(down * kBits + i))[across];
        }
        transpose(square);
        for (std::size_t i = 0; i < std::min(kBits, nodes - across * kBits); ++i) {
          bits_[begin_[across * kBits + i] + down] = square[i];
        }
      }
    }
  }

  const Word* row(std::size_t at) const { return bits_.data() + begin_[at]; }
  std::size_t bytes() const { return bits_.size() * sizeof(Word) + begin_.size() * sizeof(std::size_t); }

 private:
  std::vector<std::size_t> begin_;
  std::vector<Word> bits_;
};

class ByClosure final : public SelfReferences {
 public:
  ByClosure(const Dag& dag, int threads)
      : closure_(dag, SIZE_MAX, threads),
        reverse_(closure_, static_cast<std::size_t>(dag.nodes())),
        reached_(closure_.row_length()),
        reaching_(closure_.row_length()),
        rejected_(closure_.row_length()) {}

  bool add(Node node, bool anyway) override {
    const auto at = place_of(node);
    if (!anyway && would_violate(at)) return false;
    const Member before = members_.empty() ? Member{0, at, at} : members_.back();
    members_.push_back({changes_.size(), std::min(before.lowest, at), std::max(before.highest, at)});
    // If the node is reached already, so is everything that it reaches.
    if (!has(reached_, at)) unite(closure_.row(static_cast<Node>(at)), word_of(at), reached_.size(), reached_);
    if (!has(reaching_, at)) unite(reverse_.row(at), 0, word_of(at) + 1, reaching_);
    return true;
  }

  void remove_last() override {
    for (; changes_.size() > members_.back().changes; changes_.pop_back()) {
      *changes_.back().word = changes_.back().before;
    }
    members_.pop_back();
  }

  void reject(Node node) override {
    const auto at = place_of(node);
    rejected_[word_of(at)] |= mask_of(at);
    touched_.push_back(word_of(at));
  }

  bool is_between(Node node) const override {
    const auto at = place_of(node);
    return has(reached_, at) && has(reaching_, at);
  }

  void clear() override {
    for (const Change& change : changes_) *change.word = 0;
    for (const std::size_t word : touched_) rejected_[word] = 0;
    changes_.clear();
    touched_.clear();
    members_.clear();
  }

  std::size_t bytes() const override { return closure_.bytes() + reverse_.bytes(); }

 private:
  struct Change {
    Word* word;
    Word before;
  };

  struct Member {
    std::size_t changes;  // the number of changes before it
    std::size_t lowest;   // the subgraph's lowest place, including it
    std::size_t highest;
  };

  // Whether a rejected node lies on a path from `at` to the subgraph, or from the subgraph to `at`. Nodes in between
  // are in between in the topological order, too.
  bool would_violate(std::size_t at) const {
    if (members_.empty()) return false;
    const std::size_t lowest = word_of(members_.back().lowest);
    const std::size_t highest = word_of(members_.back().highest);
    const Word* row = closure_.row(static_cast<Node>(at));
    for (std::size_t w = word_of(at); w <= highest; ++w) {
      if ((row[w] & reaching_[w] & rejected_[w]) != 0) return true;
    }
    row = reverse_.row(at);
    for (std::size_t w = lowest; w <= word_of(at); ++w) {
      if ((row[w] & reached_[w] & rejected_[w]) != 0) return true;
    }
    return false;
  }

  void unite(const Word* row, std::size_t first, std::size_t last, std::vector<Word>& set) {
    for (std::size_t w = first; w < last; ++w) {
      if ((row[w] & ~set[w]) == 0) continue;
      changes_.push_back({&set[w], set[w]});
      set[w] |= row[w];
    }
  }

  std::size_t place_of(Node node) const { return static_cast<std::size_t>(closure_.place(node)); }

  Closure closure_;
  ReverseClosure reverse_;
  std::vector<Word> reached_;   // from the subgraph
  std::vector<Word> reaching_;  // the subgraph
  std::vector<Word> rejected_;
  std::vector<std::size_t> touched_;  // words of `rejected_`
  std::vector<Change> changes_;       // a word changes at most 64 times before it is full
  std::vector<Member> members_;
};

class BySearch final : public SelfReferences {
 public:
  explicit BySearch(const Dag& dag) : dag_(dag), flags_(static_cast<std::size_t>(dag.nodes())) {}

  bool add(Node node, bool anyway) override {
    members_.push_back(changes_.size());
    const bool is_violated = search(node, kReached, anyway) || search(node, kReaching, anyway);
    if (!is_violated || anyway) return true;
    remove_last();
    return false;
  }

  void remove_last() override {
    for (; changes_.size() > members_.back(); changes_.pop_back())
      flags_[changes_.back().node] &= ~changes_.back().flag;
    members_.pop_back();
  }

  void reject(Node node) override {
    flags_[node] |= kRejected;
    touched_.push_back(node);
  }

  bool is_between(Node node) const override { return (flags_[node] & kBetween) == kBetween; }

  void clear() override {
    for (const Change& change : changes_) flags_[change.node] = 0;
    for (const Node node : touched_) flags_[node] = 0;
    changes_.clear();
    touched_.clear();
    members_.clear();
  }

  std::size_t bytes() const override { return flags_.size(); }

 private:
  using Flags = std::uint8_t;
  static constexpr Flags kReached = 1;
  static constexpr Flags kReaching = 2;
  static constexpr Flags kBetween = kReached | kReaching;
  static constexpr Flags kRejected = 4;

  struct Change {
    Node node;
    Flags flag;
  };

  // Flags the nodes in one direction of a node; stops at a rejected node in between and returns true, unless `anyway`.
  bool search(Node start, Flags flag, bool anyway) {
    bool is_violated = false;
    if ((flags_[start] & flag) != 0) return false;
    ahead_.assign(1, start);
    while (!ahead_.empty() && (anyway || !is_violated)) {
      const Node node = ahead_.back();
      ahead_.pop_back();
      for (const Node next : flag == kReached ? dag_.successors(node) : dag_.predecessors(node)) {
        if ((flags_[next] & flag) != 0) continue;
        flags_[next] |= flag;
        changes_.push_back({next, flag});
        ahead_.push_back(next);
        is_violated |= flags_[next] == (kBetween | kRejected);
      }
    }
    return is_violated;
  }

  const Dag& dag_;
  std::vector<Flags> flags_;
  std::vector<Node> touched_;  // nodes that were rejected
  std::vector<Change> changes_;
  std::vector<std::size_t> members_;  // where the changes of each member begin
  std::vector<Node> ahead_;
};

}  // namespace

std::unique_ptr<SelfReferences> self_references_by_closure(const Dag& dag, int threads) {
  return std::make_unique<ByClosure>(dag, threads);
}

std::unique_ptr<SelfReferences> self_references_by_search(const Dag& dag) {
  return std::make_unique<BySearch>(dag);
}

std::unique_ptr<SelfReferences> make_self_references(const Dag& dag, std::size_t max_bytes, int threads) {
  // One table for each direction.
  if (Closure::table_bytes(dag.nodes()) <= max_bytes / 2) return self_references_by_closure(dag, threads);
  return self_references_by_search(dag);
}

}  // namespace engine::graph
