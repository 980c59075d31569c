// Which neighbouring tokens merge into which, and how early. A flat hash table over pairs of ids: looked up once per
// symbol of every text. Immutable after creation, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "butterfly/text/models/merge.h"

namespace butterfly {

/// Spelling to id; the views point into the vocabulary. Of equal pieces the first id stands.
using PieceMap = std::unordered_map<std::string_view, std::int32_t>;

/// The two halves of a merge written "left right". Pieces may hold spaces themselves: the first cut where both halves
/// and their concatenation are in `pieces`. Looks at the first 64 spaces, so that a hostile merge costs linear time.
struct MergeParts {
  std::int32_t left = -1;
  std::int32_t right = -1;
  std::int32_t merged = -1;
};
/// The right half loses `continuing_prefix` when it is joined to the left one.
std::optional<MergeParts> parse_merge(std::string_view merge, const PieceMap& pieces,
                                      std::string_view continuing_prefix = {});

class MergeTable {
 public:
  MergeTable() = default;

  /// kPlace: the rank is the place in `merges`. kId: it is the id that they make, as tiktoken has it.
  enum class Ranking : std::uint8_t { kPlace, kId };
  struct Options {
    Ranking ranking = Ranking::kPlace;
    std::string_view continuing_prefix = {};
  };

  /// Merges that name a piece outside `pieces` can never apply and are left out. Of equal pairs the first stands.
  MergeTable(const std::vector<std::string>& merges, const PieceMap& pieces, const Options& options);
  MergeTable(const std::vector<std::string>& merges, const PieceMap& pieces)
      : MergeTable(merges, pieces, Options{Ranking::kPlace, {}}) {}

  std::optional<MergeResult> find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    std::uint32_t rank = 0;
    std::int32_t id = -1;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  std::size_t first_slot(std::uint64_t key) const;

  std::vector<Slot> slots_;  // a power of two, at most half full; empty without merges
  int shift_ = 64;
};

}  // namespace butterfly
