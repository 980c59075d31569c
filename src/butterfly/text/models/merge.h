// Greedy merging of neighbouring symbols, best rank first, leftmost first among equals: the heart of BPE and of
// sentencepiece's BPE. A linked list and a heap make it O(n log n) where rescanning would be O(n^2).
// Not thread-safe; make one Merger per call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace butterfly {

/// A run of bytes of the text that is one symbol so far. Symbols are neighbours in the list, and their bytes in the
/// text.
struct MergeSymbol {
  std::uint32_t begin = 0;
  std::uint32_t size = 0;  // bytes; 0 once it became part of its left neighbour
  std::int32_t id = -1;    // -1: no token by itself
  std::int32_t previous = -1;
  std::int32_t next = -1;
};

struct MergeResult {
  std::uint32_t rank = 0;  // lower is merged earlier
  std::int32_t id = -1;
};

class Merger {
 public:
  void clear() { symbols_.clear(); }

  /// Appends a symbol of `size` > 0 bytes right after the last one. At most 2^31 - 1 symbols and bytes.
  void add(std::uint32_t size, std::int32_t id) {
    const auto index = static_cast<std::int32_t>(symbols_.size());
    const std::uint32_t begin = symbols_.empty() ? 0 : symbols_.back().begin + symbols_.back().size;
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({begin, size, id, index - 1, -1});
  }

  /// `lookup(left, right)` gives the std::optional<MergeResult> of two neighbours.
  template <typename Lookup>
  void run(const Lookup& lookup) {
    heap_.clear();
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) {
      const auto left = static_cast<std::int32_t>(i);
      if (auto candidate = candidate_at(left, lookup)) heap_.push_back(*candidate);
    }
    std::make_heap(heap_.begin(), heap_.end());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const Candidate best = heap_.back();
      heap_.pop_back();
      apply(best, lookup);
    }
  }

  /// Calls `visit(symbol)` for every symbol that is left, in order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = at(i).next) visit(at(i));
  }

 private:
  struct Candidate {
    std::uint64_t order = 0;  // rank, then place
    std::uint32_t size = 0;   // bytes of both symbols when it was found
    std::int32_t id = -1;
    std::int32_t left() const { return static_cast<std::int32_t>(order & 0xFFFFFFFFu); }
    bool operator<(const Candidate& other) const { return order > other.order; }
  };

  const MergeSymbol& at(std::int32_t index) const { return symbols_[static_cast<std::size_t>(index)]; }
  MergeSymbol& at(std::int32_t index) { return symbols_[static_cast<std::size_t>(index)]; }

  template <typename Lookup>
  std::optional<Candidate> candidate_at(std::int32_t left, const Lookup& lookup) const {
    const MergeSymbol& right = at(at(left).next);
    const std::optional<MergeResult> merged = lookup(at(left), right);
    if (!merged) return std::nullopt;
    const std::uint64_t order = (static_cast<std::uint64_t>(merged->rank) << 32) | static_cast<std::uint32_t>(left);
    return Candidate{order, at(left).size + right.size, merged->id};
  }

  template <typename Lookup>
  void push(std::int32_t left, const Lookup& lookup) {
    if (left < 0 || at(left).next < 0) return;
    if (auto candidate = candidate_at(left, lookup)) {
      heap_.push_back(*candidate);
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

  template <typename Lookup>
  void apply(const Candidate& best, const Lookup& lookup) {
    const std::int32_t left_index = best.left();
    MergeSymbol& left = at(left_index);
    // Either symbol can only have grown since, or have been swallowed, so equal size means the same pair.
    if (left.size == 0 || left.next < 0 || left.size + at(left.next).size != best.size) return;
    MergeSymbol& right = at(left.next);
    left.size = best.size;
    left.id = best.id;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) at(left.next).previous = left_index;
    push(left.previous, lookup);
    push(left_index, lookup);
  }

  std::vector<MergeSymbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace butterfly
