#include "butterfly/train/sharding/takeover.h"

#include <algorithm>
#include <set>

namespace butterfly {
namespace {

constexpr std::int64_t kElementsAtOnce = 4 << 20;  // of one array

/// What a rank holds of the flat array, as parts in ascending order.
struct OwnedPart {
  ParameterRange range{};
  int owner = 0;
};
std::vector<OwnedPart> parts_of(const ShardMap& map) {
  std::vector<OwnedPart> parts;
  for (std::size_t bucket = 0; bucket < map.buckets().size(); ++bucket) {
    for (int rank = 0; rank < map.group(); ++rank) {
      const ParameterRange range = map.part(bucket, rank);
      if (range.size() > 0) parts.push_back({.range = range, .owner = rank});
    }
  }
  return parts;
}

/// Of the ranks of the new epoch, those that held an old rank's part.
std::vector<int> survivors(const ShardMap& before, const std::vector<int>& old_ranks, int owner) {
  std::vector<int> left;
  for (const int holder : before.holders(owner)) {
    const auto now = std::ranges::find(old_ranks, holder);
    if (now != old_ranks.end()) left.push_back(static_cast<int>(now - old_ranks.begin()));
  }
  return left;
}

}  // namespace

Result<std::vector<StateMove>> plan_takeover(const ShardMap& before, const std::vector<int>& old_ranks,
                                             const ShardMap& after) {
  std::vector<std::vector<int>> holders;
  for (int owner = 0; owner < before.group(); ++owner) {
    holders.push_back(survivors(before, old_ranks, owner));
    if (holders.back().empty() && before.owned_elements(owner) > 0) {
      return make_error(ErrorCode::kNotFound, "rank {} is gone, and so are all that held a copy of its part", owner);
    }
  }
  std::vector<StateMove> moves;
  const std::vector<OwnedPart> old_parts = parts_of(before);
  auto old_part = old_parts.begin();
  for (const OwnedPart& part : parts_of(after)) {
    for (std::int64_t at = part.range.begin; at < part.range.end;) {
      while (old_part->range.end <= at) ++old_part;
      const std::vector<int>& have = holders[static_cast<std::size_t>(old_part->owner)];
      StateMove move{.range = {.begin = at, .end = std::min(part.range.end, old_part->range.end)},
                     .source = have.front()};
      std::set<int> need;
      for (const int holder : after.holders(part.owner)) need.insert(holder);
      for (const int holder : have) need.erase(holder);
      move.destinations.assign(need.begin(), need.end());
      at = move.range.end;
      if (!move.destinations.empty()) moves.push_back(std::move(move));
    }
  }
  return moves;
}

Status move_state(Collectives& collectives, const std::vector<StateMove>& moves,
                  const std::vector<std::span<float>>& arrays) {
  const auto ranks = static_cast<std::size_t>(collectives.size());
  const int me = collectives.rank();
  for (std::size_t first = 0; first < moves.size();) {
    std::size_t last = first;
    for (std::int64_t elements = 0; last < moves.size() && (last == first || elements < kElementsAtOnce); ++last) {
      elements += moves[last].range.size();
    }
    const std::span<const StateMove> now = std::span(moves).subspan(first, last - first);
    for (const std::span<float> array : arrays) {
      std::vector<std::vector<float>> to(ranks), from(ranks);
      for (const StateMove& move : now) {
        const auto begin = array.begin() + move.range.begin;
        for (const int destination : move.destinations) {
          auto& sent = to[static_cast<std::size_t>(destination)];
          if (move.source == me) sent.insert(sent.end(), begin, begin + move.range.size());
          auto& received = from[static_cast<std::size_t>(move.source)];
          if (destination == me) received.resize(received.size() + static_cast<std::size_t>(move.range.size()));
        }
      }
      std::vector<ByteSpan> parts(ranks);
      std::vector<MutableByteSpan> mine(ranks);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        parts[rank] = std::as_bytes(std::span(to[rank]));
        mine[rank] = std::as_writable_bytes(std::span(from[rank]));
      }
      BF_TRY(collectives.all_to_all(parts, mine));
      std::vector<std::size_t> next(ranks);
      for (const StateMove& move : now) {
        if (!std::ranges::binary_search(move.destinations, me)) continue;
        std::size_t& at = next[static_cast<std::size_t>(move.source)];
        std::copy_n(from[static_cast<std::size_t>(move.source)].begin() + static_cast<std::ptrdiff_t>(at),
                    move.range.size(), array.begin() + move.range.begin);
        at += static_cast<std::size_t>(move.range.size());
      }
    }
    first = last;
  }
  return {};
}

}  // namespace butterfly
