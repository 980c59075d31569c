// Finds control and user-defined tokens inside a text: at each place the longest one. Immutable after creation,
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

class SpecialTokens {
 public:
  /// Longer ones are refused: the search costs up to this many steps per byte of text.
  static constexpr std::size_t kBytesMax = 256;

  SpecialTokens() = default;

  struct Spelling {
    std::string text;
    std::int32_t id = -1;
    TokenType type = TokenType::kControl;
  };

  /// Finds `tokens`; the vocabulary says which of them swallow white space and which stand alone only. Errors:
  /// kUnsupported beyond kBytesMax.
  static Result<SpecialTokens> create(const Vocabulary& vocabulary, const std::vector<Spelling>& tokens);

  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t id = -1;  // -1: there is none
  };

  /// kAll: every special token. kUserDefined: only those that are text for everybody.
  enum class Which : std::uint8_t { kAll, kUserDefined };

  /// The leftmost special token at or after `from`, the longest of those that start there, together with the white
  /// space that it swallows (not to the left of `from`).
  Match find(std::string_view text, std::size_t from, Which which) const;

 private:
  struct Node {
    std::int32_t id = -1;
    bool user_defined = false;
  };

  bool stands_alone(std::string_view text, const Match& match) const;
  void insert(std::string_view piece, std::int32_t id, TokenType type);
  Match match_at(std::string_view text, std::size_t begin, Which which) const;

  std::vector<Node> nodes_;                                   // a trie; 0 is the root
  std::unordered_map<std::uint64_t, std::int32_t> children_;  // (node << 8 | byte) to node
  bool starts_[256] = {};                                     // bytes that any special token starts with
  std::vector<TokenId> strip_before_;                         // these three are sorted
  std::vector<TokenId> strip_after_;
  std::vector<TokenId> single_word_;
};

}  // namespace butterfly
