#include "butterfly/model/format/tokenizer/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "butterfly/base/text/printable.h"
#include "butterfly/model/format/tokenizer/base64.h"
#include "butterfly/model/format/tokenizer/sentencepiece_model.h"
#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/steps/published_patterns.h"

namespace butterfly {
namespace {

struct RankFamily {
  std::string_view name;  // part of a file's or a folder's name
  std::size_t ranks = 0;
  std::string_view pattern;
  std::string_view pre_tokenizer;  // what GGUF files call it; empty: none of theirs
};
constexpr std::array kRankFamilies{RankFamily{"o200k", 199'998, kO200kPattern, "gpt-4o"},
                                   RankFamily{"cl100k", 100'256, kCl100kPattern, ""},
                                   RankFamily{"p50k", 50'280, kGpt2Pattern, "gpt-2"},
                                   RankFamily{"r50k", 50'256, kGpt2Pattern, "gpt-2"},
                                   RankFamily{"gpt2", 50'256, kGpt2Pattern, "gpt-2"},
                                   RankFamily{"qwen", 151'643, kQwen2Pattern, "qwen2"},
                                   RankFamily{"kimi", 163'584, kKimiPattern, "kimi-k2"},
                                   RankFamily{"llama-3", 128'000, kLlama3Pattern, "llama-bpe"},
                                   RankFamily{"llama3", 128'000, kLlama3Pattern, "llama-bpe"},
                                   RankFamily{"llama-4", 200'000, kO200kPattern, "llama4"}};

struct SpecialToken {
  std::size_t id = 0;
  std::string text;
};

std::vector<SpecialToken> special_tokens(const RankFamily& family, std::size_t ranks) {
  const auto in_order = [&](std::initializer_list<const char*> names) {
    std::vector<SpecialToken> tokens;
    for (const char* name : names) tokens.push_back({ranks + tokens.size(), name});
    return tokens;
  };
  if (family.name == "cl100k" && ranks == family.ranks) {
    return {{100'257, "<|endoftext|>"},
            {100'258, "<|fim_prefix|>"},
            {100'259, "<|fim_middle|>"},
            {100'260, "<|fim_suffix|>"},
            {100'276, "<|endofprompt|>"}};
  }
  if (family.name == "o200k" && ranks == family.ranks)
    return {{199'999, "<|endoftext|>"}, {200'018, "<|endofprompt|>"}};
  if (family.name == "p50k" && ranks == family.ranks) return {{50'256, "<|endoftext|>"}};
  if (family.name == "qwen") {
    auto tokens = in_order({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
    for (int i = 0; i < 205; ++i) tokens.push_back({ranks + tokens.size(), fmt::format("<|extra_{}|>", i)});
    return tokens;
  }
  if (family.name.starts_with("llama")) {
    auto tokens =
        in_order({"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                  "<|reserved_special_token_1|>", "<|reserved_special_token_2|>", "<|reserved_special_token_3|>",
                  "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"});
    for (int i = 5; i < 251; ++i)
      tokens.push_back({ranks + tokens.size(), fmt::format("<|reserved_special_token_{}|>", i)});
    return tokens;
  }
  if (family.name == "kimi") return {};
  return in_order({"<|endoftext|>"});
}

const RankFamily* find_family(std::string_view name, std::size_t ranks) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const RankFamily& family : kRankFamilies) {
    if (lower.find(family.name) != std::string::npos) return &family;
  }
  const auto* found = std::ranges::find(kRankFamilies, ranks, &RankFamily::ranks);
  return found == kRankFamilies.end() ? nullptr : found;
}

/// "base64 rank"; nothing where the line is neither.
struct RankLine {
  std::string token;
  std::size_t rank = 0;
};
Result<RankLine> parse_line(std::string_view line, std::size_t number) {
  if (line.empty()) return make_error(ErrorCode::kBadData, "line {} is empty", number);
  const std::size_t space = line.find(' ');
  std::size_t rank = 0;
  const char* last = line.data() + line.size();
  const auto [end, error] = std::from_chars(line.data() + std::min(space, line.size() - 1) + 1, last, rank);
  auto token = decode_base64(line.substr(0, space));
  if (space == std::string_view::npos || error != std::errc() || end != last || !token || token->empty()) {
    return make_error(ErrorCode::kBadData, "line {} is \"{}\", expected a token in base64 and its rank", number,
                      printable(line));
  }
  return RankLine{std::move(*token), rank};
}

Result<std::vector<std::string>> read_ranks(std::string_view bytes) {
  std::vector<std::string> tokens;
  std::size_t number = 0;
  std::size_t known = 0;
  const auto lines = static_cast<std::size_t>(std::ranges::count(bytes, '\n')) + 1;
  while (!bytes.empty()) {
    const std::size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    BF_ASSIGN_OR_RETURN(RankLine entry, parse_line(line, number));
    // p50k has a hole of one.
    if (entry.rank > lines + 256) {
      return make_error(ErrorCode::kBadData, "line {} has the rank {}, the file has {} lines", number, entry.rank,
                        lines);
    }
    if (entry.rank >= tokens.size()) tokens.resize(entry.rank + 1);
    if (!tokens[entry.rank].empty()) return make_error(ErrorCode::kBadData, "rank {} is there twice", entry.rank);
    tokens[entry.rank] = std::move(entry.token);
    ++known;
  }
  if (known == 0) return make_error(ErrorCode::kBadData, "the file has no ranks");
  return tokens;
}

std::string spelled(std::string_view token) {
  std::string text;
  for (char byte : token) text += byte_alphabet().spelling[static_cast<unsigned char>(byte)];
  return text;
}

/// Every pair of tokens whose union is a token may merge; the rank of the union decides when.
void derive_merges(const std::vector<std::string>& tokens, Vocabulary& vocabulary) {
  std::unordered_map<std::string_view, std::size_t> ranks;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank], rank);
  constexpr std::size_t kLongest = 512;  // longer ones are runs of one character, and merge from halves of this size
  for (const std::string& token : tokens) {
    const std::string_view view = token;
    const std::size_t first = view.size() > kLongest ? view.size() / 2 : 1;
    const std::size_t last = view.size() > kLongest ? first + 1 : view.size();
    for (std::size_t cut = first; cut < last; ++cut) {
      if (!ranks.contains(view.substr(0, cut)) || !ranks.contains(view.substr(cut))) continue;
      vocabulary.merges.push_back(spelled(view.substr(0, cut)) + " " + spelled(view.substr(cut)));
    }
  }
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min<std::size_t>(bytes.find('\n'), 4096));
  return !line.empty() && parse_line(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line, 1).has_value();
}

Result<Vocabulary> read_tiktoken(std::string_view bytes, std::string_view name,
                                 const std::string& tokenizer_config_json) {
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, read_ranks(bytes));
  const RankFamily* family = find_family(name, tokens.size());
  if (family == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "{} ranks under the name \"{}\": how they cut texts is known of o200k, cl100k, p50k, r50k, gpt2, "
                      "qwen, kimi and llama-3 alone",
                      tokens.size(), printable(name));
  }
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  vocabulary.pre_tokenizer = PreTokenizer::kCustom;
  for (PreTokenizer known : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2}) {
    if (family->pattern == pre_tokenizer_pattern(known)) vocabulary.pre_tokenizer = known;
  }
  if (vocabulary.pre_tokenizer == PreTokenizer::kCustom) vocabulary.custom_pattern = family->pattern;
  vocabulary.pre_tokenizer_name = family->pre_tokenizer;
  vocabulary.dialect = PatternDialect::kRust;
  vocabulary.ranks_are_ids = true;
  vocabulary.ignore_merges = true;
  for (const std::string& token : tokens) {
    vocabulary.pieces.push_back(spelled(token));
    vocabulary.types.push_back(token.empty() ? TokenType::kUnused : TokenType::kNormal);
  }
  derive_merges(tokens, vocabulary);
  for (const SpecialToken& special : special_tokens(*family, tokens.size())) {
    if (special.id >= vocabulary.pieces.size()) {
      vocabulary.pieces.resize(special.id + 1);
      vocabulary.types.resize(special.id + 1, TokenType::kUnused);
    }
    vocabulary.pieces[special.id] = special.text;
    vocabulary.types[special.id] = TokenType::kControl;
    if (special.text == "<|begin_of_text|>") vocabulary.bos = TokenId{static_cast<std::int32_t>(special.id)};
    if (special.text == "<|end_of_text|>" || special.text == "<|endoftext|>") {
      vocabulary.eos = TokenId{static_cast<std::int32_t>(special.id)};
    }
  }
  vocabulary.add_bos = vocabulary.bos.value >= 0;
  BF_TRY(apply_tokenizer_config(tokenizer_config_json, vocabulary));
  vocabulary.end_tokens.clear();
  add_known_end_tokens(vocabulary);
  return vocabulary;
}

}  // namespace butterfly
