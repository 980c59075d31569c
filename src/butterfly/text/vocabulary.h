// The vocabulary of a model as plain data, filled by the readers of model files. The tokenizer reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"

namespace butterfly {

enum class TokenizerKind : std::uint8_t {
  kNone,           // no tokenizer: token ids only
  kSentencePiece,  // pieces with scores, U+2581 for spaces, merges by best score, optional byte fallback
  kByteBpe,        // byte-level BPE: pieces over the GPT-2 byte alphabet, merges by rank
};

/// What a byte-level BPE splits text with before merging.
enum class PreTokenizer : std::uint8_t { kGpt2, kLlama3, kQwen2, kCustom };

enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Vocabulary {
  TokenizerKind kind = TokenizerKind::kNone;
  PreTokenizer pre_tokenizer = PreTokenizer::kGpt2;
  std::string custom_pattern;  // for PreTokenizer::kCustom: matches and what lies between them are cut apart
  std::vector<std::string> further_patterns;  // kCustom: each cuts the parts that the ones before it left
  std::vector<std::string> pieces;            // as the model file spells them; the index is the token id
  std::vector<float> scores;                  // sentencepiece; best merges first; empty otherwise
  std::vector<TokenType> types;               // same length as pieces
  std::vector<std::string> merges;  // byte BPE: "left right", best first. Sentencepiece: where given, instead of scores
  TokenId bos{-1};                  // -1: none
  TokenId eos{-1};
  TokenId unknown{-1};
  std::vector<TokenId> end_tokens;  // every token that ends a text (eos, end of turn)
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;      // the text starts as if after a space
  bool space_prefix_once = false;     // sentencepiece: that space only at the very start, not after special tokens too
  bool fuse_unknown = true;           // sentencepiece: neighbouring characters without a token become one unknown token
  std::vector<TokenId> strip_before;  // special tokens that swallow the white space in front of them
  std::vector<TokenId> strip_after;   // and behind them
  bool ignore_merges = false;         // byte BPE: a whole pre-token in the vocabulary wins (Llama 3)
  std::string chat_template;          // as found; recognised by name, never executed

  int size() const { return static_cast<int>(pieces.size()); }
};

/// The regular expression of a named pre-tokenizer, as published with the model; empty for kCustom.
std::string_view pre_tokenizer_pattern(PreTokenizer pre_tokenizer);

/// Adds to `end_tokens` eos and the control tokens that are known by name to end a text or a turn, such as
/// "<|eot_id|>" and "<|im_end|>". Model files name only one of them.
void add_known_end_tokens(Vocabulary& vocabulary);

}  // namespace butterfly
