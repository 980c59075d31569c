// The vocabulary of a model as plain data, filled by the readers of model files. The tokenizer reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/text/steps/step_options.h"

namespace butterfly {

enum class TokenizerKind : std::uint8_t {
  kNone,           // no tokenizer: token ids only
  kSentencePiece,  // pieces with scores, U+2581 for spaces, merges by best score, optional byte fallback
  kByteBpe,        // byte-level BPE: pieces over the GPT-2 byte alphabet, merges by rank
  kBpe,            // BPE behind any steps of a tokenizer.json
  kWordPiece,      // the longest piece at each place of a word (BERT)
  kUnigram,        // the pieces whose scores add up to the most (T5, XLM-R)
  kWordLevel,      // whole words
  kLongestMatch,   // the longest piece at each place of the text (RWKV)
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
  std::vector<std::string> further_patterns;            // kCustom: each cuts the parts that the ones before it left
  std::string pre_tokenizer_name;                       // kCustom: what GGUF files call these patterns; empty: nothing
  PatternDialect dialect = PatternDialect::kOniguruma;  // of the patterns
  std::vector<std::string> pieces;                      // as the model file spells them; the index is the token id
  std::vector<double> scores;                           // sentencepiece and Unigram; best first; empty otherwise
  std::vector<TokenType> types;                         // same length as pieces
  std::vector<std::string> merges;  // BPE: "left right", best first. Sentencepiece: where given, instead of scores
  TokenId bos{-1};                  // -1: none
  TokenId eos{-1};
  TokenId unknown{-1};
  std::vector<TokenId> end_tokens;  // every token that ends a text (eos, end of turn)
  bool add_bos = false;
  bool add_eos = false;
  std::vector<TokenId> text_prefix;   // what a template puts in front of texts where it is more than bos
  std::vector<TokenId> text_suffix;   // and behind them where it is more than eos
  bool add_space_prefix = false;      // the text starts as if after a space
  bool space_prefix_once = false;     // sentencepiece: that space only at the very start, not after special tokens too
  bool space_prefix_if_none = false;  // sentencepiece: that space only where there is none
  bool fuse_unknown = true;           // neighbouring characters without a token become one unknown token
  bool fuse_unknown_words = false;    // and so do neighbouring words
  bool drops_unknown = false;         // where there is no unknown token: such characters vanish, as in `tokenizers`
  std::vector<TokenId> strip_before;  // special tokens that swallow the white space in front of them
  std::vector<TokenId> strip_after;   // and behind them
  std::vector<TokenId> single_word;   // special tokens only where no character of a word touches them
  std::vector<TokenId> normalized;    // special tokens that are looked for, and spelled, as normalised
  bool user_defined_inside = false;   // user-defined pieces are the encoder's business (SentencePiece's own files)
  bool ignore_merges = false;         // BPE: a whole pre-token in the vocabulary wins (Llama 3)
  bool ranks_are_ids = false;         // BPE: the pair whose union has the lowest id merges first (tiktoken)
  bool byte_fallback = false;         // a character without a token becomes its bytes' tokens, where those exist
  bool float_scores = false;          // Unigram: sums are rounded to float, as SentencePiece does
  double highest_score = 0;           // Unigram: of the normal pieces
  std::string continuing_prefix;      // BPE and WordPiece: of pieces inside a word
  std::string word_suffix;            // BPE: of pieces at the end of a word
  std::string word_prefix;            // WordPiece: of pieces at the start of a word
  std::size_t word_characters_max = 100;         // WordPiece: longer words are unknown
  std::vector<NormalizerStep> normalizers;       // before anything else; sentencepiece: instead of its spaces
  std::vector<PreTokenizerStep> pre_tokenizers;  // kBpe, kWordPiece, kUnigram, kWordLevel
  std::vector<DecoderStep> decoders;             // of the same kinds
  std::string tokenizer_json;                    // the file, where the fields above say what GGUF's own keys cannot
  std::string chat_template;                     // as found; recognised by name, never executed

  int size() const { return static_cast<int>(pieces.size()); }
};

/// The regular expression of a named pre-tokenizer, as published with the model; empty for kCustom.
std::string_view pre_tokenizer_pattern(PreTokenizer pre_tokenizer);

/// Adds to `end_tokens` eos and the control tokens that are known by name to end a text or a turn, such as
/// "<|eot_id|>" and "<|im_end|>". Model files name only one of them.
void add_known_end_tokens(Vocabulary& vocabulary);

}  // namespace butterfly
