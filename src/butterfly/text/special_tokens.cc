#include "butterfly/text/special_tokens.h"

#include <algorithm>

namespace butterfly {

namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool contains(const std::vector<TokenId>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), TokenId{id}) != ids.end();
}

std::uint64_t child_key(std::int32_t node, char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | static_cast<unsigned char>(byte);
}

}  // namespace

Result<SpecialTokens> SpecialTokens::create(const Vocabulary& vocabulary) {
  SpecialTokens result;
  result.nodes_.emplace_back();
  result.strip_before_ = vocabulary.strip_before;
  result.strip_after_ = vocabulary.strip_after;
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    const TokenType type = vocabulary.types[index];
    if (type != TokenType::kUnknown && type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    const std::string& piece = vocabulary.pieces[index];
    if (piece.size() > kBytesMax) {
      return make_error(ErrorCode::kUnsupported, "special token {} has {} bytes, at most {} are supported", id,
                        piece.size(), kBytesMax);
    }
    if (!piece.empty()) result.insert(piece, id, type);
  }
  return result;
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
    if (contains(strip_before_, match.id)) {
      while (match.begin > from && is_space(text[match.begin - 1])) --match.begin;
    }
    if (contains(strip_after_, match.id)) {
      while (match.end < text.size() && is_space(text[match.end])) ++match.end;
    }
    return match;
  }
  return {};
}

}  // namespace butterfly
