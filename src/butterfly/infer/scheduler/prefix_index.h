// Which sequences begin with a given text, page by page of the cache: who begins alike needs not compute it again.
// Knows the texts by chained hashes of whole pages; who asks compares the tokens themselves. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "butterfly/base/ids.h"

namespace butterfly {

/// Hashes of the first page of a text, of the first two, and so on; pages that are not full have none.
std::vector<std::uint64_t> prefix_hashes(std::span<const TokenId> tokens);

class PrefixIndex {
 public:
  void add(SequenceId sequence, std::span<const std::uint64_t> hashes);
  void remove(SequenceId sequence, std::span<const std::uint64_t> hashes);
  void clear() { holders_.clear(); }

  /// Those that were added with this hash, in the order in which they were.
  std::span<const SequenceId> holders(std::uint64_t hash) const;

 private:
  std::unordered_map<std::uint64_t, std::vector<SequenceId>> holders_;
};

}  // namespace butterfly
