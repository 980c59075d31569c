// Bytes to token ids and back. Immutable after creation, thread-safe. Never throws, never prints.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/steps/decoder.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

struct EncodeOptions {
  bool add_bos = true;        // only where the vocabulary says add_bos and the text does not start with it
  bool add_eos = false;       // only where the vocabulary says add_eos: texts of a prompt are to go on
  bool parse_special = true;  // control tokens in the text become their ids; user-defined ones always do
  /// One byte for each of the text's, 0 where control tokens count: one that has other bytes is plain text. So are the
  /// user-defined tokens in `guarded`. Empty: they count everywhere.
  std::string_view marks{};
  std::span<const TokenId> guarded{};
};

class Tokenizer {
 public:
  /// Errors: kBadData for a vocabulary that contradicts itself, naming both values; kUnsupported for
  /// TokenizerKind::kNone.
  static Result<Tokenizer> create(Vocabulary vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Errors: kInvalidArgument for invalid UTF-8, naming the byte offset, and for more than 2^29 bytes; kBadData where a
  /// character has no token; kTimeout for a custom pattern that takes too long.
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The bytes that `token` adds to a text; control and unknown tokens add nothing unless kShown. Empty where `token`
  /// is outside the vocabulary.
  enum class Control { kHidden, kShown };
  std::string piece(TokenId token, Control control = Control::kHidden) const;

  /// Whole text of `tokens`. A sentencepiece text loses the space that add_space_prefix put in front.
  std::string decode(const std::vector<TokenId>& tokens, Control control = Control::kHidden) const;

  /// The token as decoder() wants it; empty as piece() is. Where there is no decoder() it is piece().
  std::string spelling(TokenId token, Control control) const;

  /// How spellings become text; null where they are text.
  const TextDecoder* decoder() const;

  const Vocabulary& vocabulary() const;
  bool is_end(TokenId token) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns tokens into text as they come and never emits part of a UTF-8 character. One per text; not thread-safe.
class StreamingDetokenizer {
 public:
  /// `first_in_text`: strip the artificial leading space of the first piece where the vocabulary adds one.
  struct Options {
    bool first_in_text = true;
    Tokenizer::Control control = Tokenizer::Control::kHidden;
  };
  StreamingDetokenizer(const Tokenizer& tokenizer, const Options& options);
  explicit StreamingDetokenizer(const Tokenizer& tokenizer);

  /// The complete characters that are ready after `token`; may be empty. Bytes that cannot become a character are
  /// U+FFFD.
  std::string push(TokenId token);

  /// What is left at the end; an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  Options options_;
  std::string ready(std::string_view text);

  std::optional<TextDecoder::Run> run_;
  std::string pending_;
  bool at_start_;
};

}  // namespace butterfly
