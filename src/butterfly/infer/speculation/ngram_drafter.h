// Guesses that a text goes on as it did before, after the same few tokens: code that is edited, quotes, lists and
// summaries repeat much of what stands above. Saxena, "Prompt lookup decoding" (2023).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "butterfly/infer/speculation/drafter.h"

namespace butterfly {

class NgramDrafter final : public Drafter {
 public:
  /// What followed the last occurrence of the longest of these many last tokens.
  static constexpr std::array<std::size_t, 2> kLengths = {8, 3};

  Result<std::vector<TokenId>> propose(SequenceId sequence, std::span<const TokenId> tokens, std::size_t most) override;
  void forget(SequenceId sequence) override { texts_.erase(sequence); }

 private:
  struct Text {
    std::array<std::unordered_map<std::uint64_t, std::uint32_t>, kLengths.size()> after{};  // n-gram -> what follows it
    std::size_t indexed = 0;  // tokens whose n-grams are known
  };

  std::map<SequenceId, Text> texts_;
};

}  // namespace butterfly
