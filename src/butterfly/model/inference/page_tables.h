// Which pages of a cache each sequence has, in the order of its positions. Sequences that begin alike may share whole
// pages; a page is free once nobody has it. Knows numbers of pages alone: a node keeps its cache by it, and a
// scheduler knows by the same account what fits on every node. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"

namespace butterfly {

class PageTables {
 public:
  /// At most `pages_max` pages in all; none: no limit.
  explicit PageTables(std::optional<std::int64_t> pages_max = {}) : pages_max_(pages_max) {}

  static std::int64_t pages_for(std::int64_t tokens);

  /// Makes room for positions [0, tokens) of `sequence`; false, and nothing has changed, where that passes the limit.
  bool reserve(SequenceId sequence, std::int64_t tokens);

  /// Gives `to`, which has nothing yet, the pages of the first `tokens` of `from`. Errors: kProtocol where `from` has
  /// fewer, `to` has some, or they are no whole pages.
  Status share(SequenceId from, SequenceId to, std::int64_t tokens);

  /// Forgets `sequence`. Unknown sequences are ignored.
  void release(SequenceId sequence);

  /// Of a sequence that has some; asking for another ends the program.
  const std::vector<std::int32_t>& pages(SequenceId sequence) const { return tables_.at(sequence); }

  bool has(SequenceId sequence) const { return tables_.contains(sequence); }

  std::size_t sequences() const { return tables_.size(); }
  /// Ever: pages have numbers below this one.
  std::int64_t created() const { return static_cast<std::int64_t>(users_.size()); }
  std::int64_t used() const { return created() - static_cast<std::int64_t>(free_.size()); }

 private:
  std::optional<std::int64_t> pages_max_;
  std::vector<std::int32_t> users_;  // sequences that have each page
  std::vector<std::int32_t> free_;
  std::unordered_map<SequenceId, std::vector<std::int32_t>> tables_;
};

}  // namespace butterfly
