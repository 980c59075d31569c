#include "butterfly/text/models/byte_trie.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>

namespace butterfly {

namespace {

constexpr std::uint32_t kTrieBlock = 256;  // places

/// A set of places of one block.
using PlaceSet = std::array<std::uint64_t, kTrieBlock / 64>;

/// {place ^ label : place in `set`}
PlaceSet moved(const PlaceSet& set, unsigned char label) {
  constexpr std::array<std::uint64_t, 6> kEven{0x5555555555555555u, 0x3333333333333333u, 0x0F0F0F0F0F0F0F0Fu,
                                               0x00FF00FF00FF00FFu, 0x0000FFFF0000FFFFu, 0x00000000FFFFFFFFu};
  PlaceSet result{};
  for (std::size_t word = 0; word < set.size(); ++word) {
    std::uint64_t bits = set[word];
    for (std::size_t level = 0; level < kEven.size(); ++level) {
      if (((label >> level) & 1) == 0) continue;
      const int width = 1 << level;
      bits = ((bits & kEven[level]) << width) | ((bits >> width) & kEven[level]);
    }
    result[word ^ (label >> 6)] = bits;
  }
  return result;
}

/// Which places are taken, block by block. Places are looked for in the newest blocks alone, so that a trie takes time
/// in proportion to its nodes.
class Places {
 public:
  /// A base at which all `labels` are free, and takes them.
  std::uint32_t take(const std::vector<unsigned char>& labels) {
    for (Block& block : open_) {
      if (const int base = base_in(block, labels); base >= 0)
        return taken(block, static_cast<unsigned char>(base), labels);
    }
    return taken(add_block(), 0, labels);
  }

  std::uint32_t blocks() const { return blocks_; }

  /// The root's own place.
  void take_root() { add_block().free[0] &= ~std::uint64_t{1}; }

 private:
  struct Block {
    std::uint32_t first = 0;
    PlaceSet free{};
  };

  Block& add_block() {
    constexpr std::size_t kOpenMax = 16;
    if (open_.size() == kOpenMax) open_.pop_front();
    open_.push_back({blocks_++ * kTrieBlock, {}});
    open_.back().free.fill(~std::uint64_t{0});
    return open_.back();
  }

  static int base_in(const Block& block, const std::vector<unsigned char>& labels) {
    PlaceSet bases;
    bases.fill(~std::uint64_t{0});
    for (const unsigned char label : labels) {
      const PlaceSet free = moved(block.free, label);
      std::uint64_t any = 0;
      for (std::size_t word = 0; word < bases.size(); ++word) any |= bases[word] &= free[word];
      if (any == 0) return -1;
    }
    for (std::size_t word = 0; word < bases.size(); ++word) {
      if (bases[word] != 0) return static_cast<int>(word * 64) + std::countr_zero(bases[word]);
    }
    return -1;
  }

  static std::uint32_t taken(Block& block, unsigned char base, const std::vector<unsigned char>& labels) {
    for (const unsigned char label : labels) {
      const std::size_t place = base ^ label;
      block.free[place / 64] &= ~(std::uint64_t{1} << (place % 64));
    }
    return block.first + base;
  }

  std::deque<Block> open_;
  std::uint32_t blocks_ = 0;
};

}  // namespace

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, std::int32_t>> entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.first.empty(); });
  std::ranges::stable_sort(entries, {}, &std::pair<std::string_view, std::int32_t>::first);
  const auto again = std::ranges::unique(entries, {}, &std::pair<std::string_view, std::int32_t>::first);
  entries.erase(again.begin(), again.end());
  // The entries below a node are a run of the sorted ones; `depth` bytes of them are behind us.
  struct Run {
    Node node = kRoot;
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t depth = 0;
  };
  std::deque<Run> runs{{kRoot, 0, entries.size(), 0}};
  Places places;
  places.take_root();
  nodes_.resize(kTrieBlock);
  std::vector<unsigned char> labels;
  std::vector<std::size_t> borders;
  for (; !runs.empty(); runs.pop_front()) {
    auto [node, begin, end, depth] = runs.front();
    if (begin < end && entries[begin].first.size() == depth) nodes_[node].value = entries[begin++].second;
    if (begin == end) continue;
    labels.clear();
    borders.clear();
    for (std::size_t i = begin; i < end; ++i) {
      const auto label = static_cast<unsigned char>(entries[i].first[depth]);
      if (!labels.empty() && labels.back() == label) continue;
      labels.push_back(label);
      borders.push_back(i);
    }
    borders.push_back(end);
    const Node base = places.take(labels);
    nodes_.resize(std::size_t{places.blocks()} * kTrieBlock);
    nodes_[node].base = base;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      nodes_[base ^ labels[i]].parent = node;
      runs.push_back({base ^ labels[i], borders[i], borders[i + 1], depth + 1});
    }
  }
}

}  // namespace butterfly
