// The bytes of every token of a vocabulary as a tree in depth-first order, so that what a grammar allows is found in
// one pass that leaves out whole branches. Control tokens and tokens that end texts are not in it. Immutable,
// thread-safe; one for each model, shared by all grammars.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

class TokenTrie {
 public:
  static std::shared_ptr<const TokenTrie> create(const Tokenizer& tokenizer);

  struct Node {
    std::uint32_t end = 0;    // behind the last node below this one
    std::int32_t token = -1;  // the lowest id with the bytes that lead here
    std::uint16_t depth = 0;  // bytes
    unsigned char byte = 0;
  };
  /// The first is the root.
  const std::vector<Node>& nodes() const { return nodes_; }

  /// The next token with the same bytes; -1: there is none.
  std::int32_t same_as(std::int32_t token) const { return same_as_[static_cast<std::size_t>(token)]; }

  /// Empty for those that are not in the tree.
  std::string_view bytes(TokenId token) const;

  int vocab() const { return static_cast<int>(same_as_.size()); }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  std::size_t depth_max() const { return depth_max_; }
  /// Each byte that UTF-8 can have is a token, so that every text can be written.
  bool has_all_bytes() const { return has_all_bytes_; }
  /// The first token of a text that starts anew loses a space.
  bool strips_first_space() const { return strips_first_space_; }

 private:
  TokenTrie() = default;

  std::vector<Node> nodes_;
  std::vector<std::int32_t> same_as_;
  std::vector<std::uint32_t> offsets_;  // in text_, one more than tokens
  std::vector<char> text_;
  std::vector<TokenId> end_tokens_;
  std::size_t depth_max_ = 0;
  bool has_all_bytes_ = false;
  bool strips_first_space_ = false;
};

}  // namespace butterfly
