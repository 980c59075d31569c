#include "butterfly/text/grammar/token_trie.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

namespace butterfly {
namespace {

constexpr std::size_t kTokenBytesMax = 1024;  // longer ones are never chosen

/// "<0x0A>" as a byte: alone it may be no character, and then its text is no help.
bool byte_of_name(std::string_view name, char& byte) {
  if (name.size() != 6 || !name.starts_with("<0x") || !name.ends_with('>')) return false;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(name.data() + 3, name.data() + 5, value, 16);
  if (error != std::errc{} || end != name.data() + 5) return false;
  byte = static_cast<char>(value);
  return true;
}

std::string token_bytes(const Tokenizer& tokenizer, TokenId token) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  const auto index = static_cast<std::size_t>(token.value);
  const bool falls_back = vocabulary.byte_fallback || vocabulary.types[index] == TokenType::kByte ||
                          std::ranges::any_of(vocabulary.decoders, [](const auto& step) {
                            return step.kind == DecoderStep::Kind::kByteFallback;
                          });
  char byte = 0;
  if (falls_back && byte_of_name(vocabulary.pieces[index], byte)) return std::string(1, byte);
  if (vocabulary.types[index] == TokenType::kUnused) return {};
  return tokenizer.piece(token);
}

bool loses_first_space(const Tokenizer& tokenizer, TokenId token) {
  StreamingDetokenizer text(tokenizer, {.first_in_text = true});
  const std::string shown = text.push(token) + text.finish();
  return !shown.starts_with(' ');
}

}  // namespace

std::string_view TokenTrie::bytes(TokenId token) const {
  if (token.value < 0 || token.value >= vocab()) return {};
  const auto index = static_cast<std::size_t>(token.value);
  return {text_.data() + offsets_[index], offsets_[index + 1] - offsets_[index]};
}

std::shared_ptr<const TokenTrie> TokenTrie::create(const Tokenizer& tokenizer) {
  const auto trie = std::shared_ptr<TokenTrie>(new TokenTrie);
  const int vocab = tokenizer.vocabulary().size();
  trie->same_as_.assign(static_cast<std::size_t>(vocab), -1);
  trie->offsets_.push_back(0);
  std::vector<std::int32_t> order;
  for (std::int32_t id = 0; id < vocab; ++id) {
    const TokenId token(id);
    std::string bytes;
    if (tokenizer.is_end(token)) {
      trie->end_tokens_.push_back(token);
    } else {
      bytes = token_bytes(tokenizer, token);
    }
    if (bytes.size() > kTokenBytesMax) bytes.clear();
    if (!bytes.empty()) order.push_back(id);
    trie->text_.insert(trie->text_.end(), bytes.begin(), bytes.end());
    trie->offsets_.push_back(static_cast<std::uint32_t>(trie->text_.size()));
  }
  std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
    const auto left = trie->bytes(TokenId(a));
    const auto right = trie->bytes(TokenId(b));
    return left != right ? left < right : a < b;
  });
  std::vector<Node>& nodes = trie->nodes_;
  nodes.emplace_back();
  std::vector<std::uint32_t> way{0};  // open nodes
  std::array<bool, 256> single{};
  std::string_view before;
  std::int32_t last = -1;
  for (const std::int32_t id : order) {
    const std::string_view bytes = trie->bytes(TokenId(id));
    if (last >= 0 && bytes == before) {
      trie->same_as_[static_cast<std::size_t>(std::exchange(last, id))] = id;
      continue;
    }
    const auto common = static_cast<std::size_t>(std::ranges::mismatch(bytes, before).in1 - bytes.begin());
    for (; way.size() > common + 1; way.pop_back()) nodes[way.back()].end = static_cast<std::uint32_t>(nodes.size());
    for (std::size_t i = common; i < bytes.size(); ++i) {
      way.push_back(static_cast<std::uint32_t>(nodes.size()));
      nodes.push_back({.depth = static_cast<std::uint16_t>(i + 1), .byte = static_cast<unsigned char>(bytes[i])});
    }
    nodes.back().token = id;
    if (bytes.size() == 1) single[static_cast<unsigned char>(bytes[0])] = true;
    trie->depth_max_ = std::max(trie->depth_max_, bytes.size());
    before = bytes;
    last = id;
  }
  for (const std::uint32_t node : way) nodes[node].end = static_cast<std::uint32_t>(nodes.size());
  trie->has_all_bytes_ = true;
  for (unsigned byte = 0; byte < 0xF5; ++byte) {
    if (byte != 0xC0 && byte != 0xC1 && !single[byte]) trie->has_all_bytes_ = false;
  }
  const auto spaced = std::ranges::find_if(order, [&](std::int32_t id) {
    const auto bytes = trie->bytes(TokenId(id));
    return bytes.size() > 1 && bytes[0] == ' ' && bytes[1] > ' ' && bytes[1] < 0x7F;
  });
  trie->strips_first_space_ = spaced != order.end() && loses_first_space(tokenizer, TokenId(*spaced));
  return trie;
}

}  // namespace butterfly
