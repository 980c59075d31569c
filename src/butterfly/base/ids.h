// Strong integer ids: a LayerId is not a TokenId. Plain values, ordered and hashable.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace butterfly {

template <typename Tag, typename Int>
struct StrongId {
  using Value = Int;
  Int value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Int v) : value(v) {}
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

using Rank = StrongId<struct RankTag, std::int32_t>;              // a node's place in a plan, from 0
using LayerId = StrongId<struct LayerIdTag, std::int32_t>;        // a transformer block, from 0
using TokenId = StrongId<struct TokenIdTag, std::int32_t>;        // an entry of the vocabulary
using SequenceId = StrongId<struct SequenceIdTag, std::int32_t>;  // one text being read or written
using Epoch = StrongId<struct EpochTag, std::uint32_t>;           // one unchanging membership of a cluster

}  // namespace butterfly

template <typename Tag, typename Int>
struct std::hash<butterfly::StrongId<Tag, Int>> {
  std::size_t operator()(butterfly::StrongId<Tag, Int> id) const noexcept { return std::hash<Int>{}(id.value); }
};
