#include "butterfly/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace butterfly {

namespace {

// Words and their contractions, numbers, punctuation, white space. As published with GPT-2, Llama 3 and Qwen2.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<std::string_view, 12> kEndPieces{
    "<|return|>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<|eot_id|>",    "<|eom_id|>",    "<|im_end|>",
    "<|end|>",    "<EOT>",    "<|end_of_text|>",       "<|endoftext|>", "<end_of_turn>", "<|end_of_turn|>"};

}  // namespace

std::string_view pre_tokenizer_pattern(PreTokenizer pre_tokenizer) {
  switch (pre_tokenizer) {
    case PreTokenizer::kGpt2:
      return kGpt2Pattern;
    case PreTokenizer::kLlama3:
      return kLlama3Pattern;
    case PreTokenizer::kQwen2:
      return kQwen2Pattern;
    case PreTokenizer::kCustom:
      break;
  }
  return {};
}

void add_known_end_tokens(Vocabulary& vocabulary) {
  const auto add = [&](TokenId id) {
    const auto& known = vocabulary.end_tokens;
    if (std::find(known.begin(), known.end(), id) == known.end()) vocabulary.end_tokens.push_back(id);
  };
  if (vocabulary.eos.value >= 0) add(vocabulary.eos);
  // Where an answer is several messages, "<|end|>" ends a message and "<|return|>" the answer.
  const auto is_return = [&](const std::string& piece) { return piece == "<|return|>"; };
  const bool has_messages = std::any_of(vocabulary.pieces.begin(), vocabulary.pieces.end(), is_return);
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    if (vocabulary.types[index] != TokenType::kControl) continue;
    const std::string& piece = vocabulary.pieces[index];
    if (has_messages && piece == "<|end|>") continue;
    if (std::find(kEndPieces.begin(), kEndPieces.end(), piece) != kEndPieces.end()) add(TokenId{id});
  }
}

}  // namespace butterfly
