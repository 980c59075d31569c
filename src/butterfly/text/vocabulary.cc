#include "butterfly/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "butterfly/text/steps/published_patterns.h"

namespace butterfly {

namespace {

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
