#include "butterfly/text/special_tokens.h"

#include <algorithm>

#include "butterfly/text/steps/unicode.h"

namespace butterfly {

namespace {

/// The character that ends right before `end` > 0.
std::string_view character_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return text.substr(begin, end - begin);
}

bool contains(const std::vector<TokenId>& ids, std::int32_t id) {
  return std::ranges::binary_search(ids, TokenId{id});
}

std::uint64_t child_key(std::int32_t node, char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | static_cast<unsigned char>(byte);
}

}  // namespace

Result<SpecialTokens> SpecialTokens::create(const Vocabulary& vocabulary, const std::vector<Spelling>& tokens) {
  SpecialTokens result;
  result.nodes_.emplace_back();
  result.strip_before_ = vocabulary.strip_before;
  result.strip_after_ = vocabulary.strip_after;
  result.single_word_ = vocabulary.single_word;
  for (auto* ids : {&result.strip_before_, &result.strip_after_, &result.single_word_}) std::ranges::sort(*ids);
  for (const auto& [text, id, type] : tokens) {
    if (text.size() > kBytesMax) {
      return make_error(ErrorCode::kUnsupported, "special token {} has {} bytes, at most {} are supported", id,
                        text.size(), kBytesMax);
    }
    if (!text.empty()) result.insert(text, id, type);
  }
  return result;
}

bool SpecialTokens::stands_alone(std::string_view text, const Match& match) const {
  if (single_word_.empty() || !contains(single_word_, match.id)) return true;
  const bool left = match.begin > 0 && is_unicode_word(first_character(character_before(text, match.begin)).code_point);
  const bool right = match.end < text.size() && is_unicode_word(first_character(text.substr(match.end)).code_point);
  return !left && !right;
}

void SpecialTokens::insert(std::string_view piece, std::int32_t id, TokenType type) {
  starts_[static_cast<unsigned char>(piece[0])] = true;
  std::int32_t node = 0;
  for (char byte : piece) {
    const auto [child, is_new] = children_.try_emplace(child_key(node, byte), static_cast<std::int32_t>(nodes_.size()));
    node = child->second;
    if (is_new) nodes_.emplace_back();
  }
  Node& last = nodes_[static_cast<std::size_t>(node)];
  if (last.id < 0) last = {id, type == TokenType::kUserDefined};
}

SpecialTokens::Match SpecialTokens::match_at(std::string_view text, std::size_t begin, Which which) const {
  Match best;
  std::int32_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const auto child = children_.find(child_key(node, text[i]));
    if (child == children_.end()) break;
    node = child->second;
    const Node& here = nodes_[static_cast<std::size_t>(node)];
    if (here.id >= 0 && (which == Which::kAll || here.user_defined)) best = {begin, i + 1, here.id};
  }
  return best;
}

SpecialTokens::Match SpecialTokens::find(std::string_view text, std::size_t from, Which which) const {
  if (nodes_.size() <= 1) return {};
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match match = match_at(text, begin, which);
    if (match.id < 0) continue;
    if (!stands_alone(text, match)) {
      begin = match.end - 1;
      continue;
    }
    if (contains(strip_before_, match.id)) {
      while (match.begin > from) {
        const std::string_view before = character_before(text, match.begin);
        if (!is_unicode_space(first_character(before).code_point)) break;
        match.begin -= before.size();
      }
    }
    if (contains(strip_after_, match.id)) {
      while (match.end < text.size()) {
        const Character next = first_character(text.substr(match.end));
        if (!is_unicode_space(next.code_point)) break;
        match.end += next.size;
      }
    }
    return match;
  }
  return {};
}

}  // namespace butterfly
