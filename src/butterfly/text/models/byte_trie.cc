#include "butterfly/text/models/byte_trie.h"

#include <algorithm>

namespace butterfly {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, std::int32_t>> entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.first.empty(); });
  std::ranges::stable_sort(entries, {}, &std::pair<std::string_view, std::int32_t>::first);
  const auto again = std::ranges::unique(entries, {}, &std::pair<std::string_view, std::int32_t>::first);
  entries.erase(again.begin(), again.end());
  // The entries below a node are a run of the sorted ones; `depth` bytes of them are behind us.
  struct Run {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t depth = 0;
  };
  std::vector<Run> runs{{0, entries.size(), 0}};
  nodes_.emplace_back();
  labels_.push_back(0);
  for (std::size_t node = 0; node < runs.size(); ++node) {
    auto [begin, end, depth] = runs[node];
    if (begin < end && depth > 0 && entries[begin].first.size() == depth) nodes_[node].value = entries[begin++].second;
    nodes_[node].first = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = entries[begin].first[depth];
      std::size_t last = begin + 1;
      while (last < end && entries[last].first[depth] == label) ++last;
      runs.push_back({begin, last, depth + 1});
      nodes_.emplace_back();
      labels_.push_back(static_cast<unsigned char>(label));
      begin = last;
    }
    nodes_[node].count = static_cast<std::uint32_t>(nodes_.size() - nodes_[node].first);
  }
  for (std::uint32_t i = 0; i < nodes_[0].count; ++i) root_[labels_[nodes_[0].first + i]] = nodes_[0].first + i;
}

}  // namespace butterfly
