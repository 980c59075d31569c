#include "butterfly/infer/speculation/ngram_drafter.h"

#include <algorithm>

namespace butterfly {
namespace {

std::uint64_t hash_of(std::span<const TokenId> tokens) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, over tokens
  for (const TokenId token : tokens) hash = (hash ^ static_cast<std::uint32_t>(token.value)) * 0x100000001b3;
  return hash;
}

}  // namespace

Result<std::vector<TokenId>> NgramDrafter::propose(SequenceId sequence, std::span<const TokenId> tokens,
                                                   std::size_t most) {
  Text& text = texts_[sequence];
  if (text.indexed > tokens.size()) text = {};
  std::vector<TokenId> draft;
  for (std::size_t n = 0; n < kLengths.size() && draft.empty(); ++n) {
    const std::size_t length = kLengths[n];
    if (tokens.size() < length) continue;
    auto& after = text.after[n];
    // The last tokens themselves are looked up, and known from the next call on.
    for (std::size_t end = std::max(text.indexed, length); end < tokens.size(); ++end) {
      after[hash_of(tokens.subspan(end - length, length))] = static_cast<std::uint32_t>(end);
    }
    const std::span<const TokenId> last = tokens.last(length);
    const auto found = after.find(hash_of(last));
    if (found == after.end()) continue;
    const std::size_t from = found->second;
    if (!std::ranges::equal(tokens.subspan(from - length, length), last)) continue;
    // A text that repeats itself closely goes on with what is being guessed.
    for (std::size_t i = from; draft.size() < most; ++i) {
      draft.push_back(i < tokens.size() ? tokens[i] : draft[i - tokens.size()]);
    }
  }
  text.indexed = tokens.size();
  return draft;
}

}  // namespace butterfly
