#include "butterfly/text/models/merge_table.h"

#include <bit>

namespace butterfly {

namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

}  // namespace

std::optional<MergeParts> parse_merge(std::string_view merge, const PieceMap& pieces,
                                      std::string_view continuing_prefix) {
  constexpr int kCutsMax = 64;
  std::string merged;
  int cuts = 0;
  for (std::size_t cut = merge.find(' '); cut != std::string_view::npos && cuts < kCutsMax;
       cut = merge.find(' ', cut + 1), ++cuts) {
    const auto left = pieces.find(merge.substr(0, cut));
    if (left == pieces.end()) continue;
    const auto right = pieces.find(merge.substr(cut + 1));
    if (right == pieces.end()) continue;
    std::string_view joined = right->first;
    if (joined.starts_with(continuing_prefix)) joined.remove_prefix(continuing_prefix.size());
    merged.assign(left->first).append(joined);
    const auto whole = pieces.find(merged);
    if (whole != pieces.end()) return MergeParts{left->second, right->second, whole->second};
  }
  return std::nullopt;
}

MergeTable::MergeTable(const std::vector<std::string>& merges, const PieceMap& pieces, const Options& options) {
  if (merges.empty()) return;
  const std::size_t capacity = std::bit_ceil(merges.size() * 2);
  shift_ = 64 - std::countr_zero(capacity);
  slots_.resize(capacity);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::optional<MergeParts> parts = parse_merge(merges[rank], pieces, options.continuing_prefix);
    if (!parts) continue;
    const std::uint64_t key = pair_key(parts->left, parts->right);
    std::size_t slot = first_slot(key);
    while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
    if (slots_[slot].key == kEmpty) {
      const auto id = static_cast<std::uint32_t>(parts->merged);
      slots_[slot] = {key, options.ranking == Ranking::kId ? id : static_cast<std::uint32_t>(rank), parts->merged};
    }
  }
}

std::size_t MergeTable::first_slot(std::uint64_t key) const {
  // Fibonacci hashing: the golden ratio spreads consecutive ids over the whole table.
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
}

std::optional<MergeResult> MergeTable::find(std::int32_t left, std::int32_t right) const {
  if (slots_.empty() || left < 0 || right < 0) return std::nullopt;
  const std::uint64_t key = pair_key(left, right);
  for (std::size_t slot = first_slot(key); slots_[slot].key != kEmpty; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].key == key) return MergeResult{slots_[slot].rank, slots_[slot].id};
  }
  return std::nullopt;
}

}  // namespace butterfly
