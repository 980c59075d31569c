// The tokens of a corpus, out of text or packed files, as one sequence. Immutable after open(), thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/train/data/dataset.h"
#include "butterfly/train/data/token_file.h"

namespace butterfly {

class TokenSource {
 public:
  /// Errors: as open_dataset().
  static Result<TokenSource> open(const std::vector<std::string>& files, const DatasetOptions& options);

  std::int64_t size() const { return embedding_and_lm_head_.empty() ? 0 : embedding_and_lm_head_.back(); }
  int vocab() const { return vocab_; }
  void copy(std::int64_t begin, std::span<TokenId> ids) const;

  /// In the order of the files.
  const std::vector<TokenPart>& parts() const { return parts_; }

  /// How often each id is among [begin, begin + count). Errors: kBadData for an id outside the vocabulary.
  Result<std::vector<std::uint64_t>> counts(std::int64_t begin, std::int64_t count) const;

  /// SHA-256 over the ids of [begin, begin + count) as numbers of 4 bytes. Errors: kUnsupported (no SHA-256).
  Result<std::string> digest(std::int64_t begin, std::int64_t count) const;

  /// Errors: those of MappedFile::unchanged(), of each packed file.
  Status unchanged() const;

 private:
  Status add_text(const std::string& path, const DatasetOptions& options, std::uint64_t& done, std::uint64_t total);
  Status add_packed(const std::string& path, TokenFile file, const DatasetOptions& options);
  void add_part(TokenPart part);
  std::size_t part_with(std::int64_t at) const;

  std::vector<TokenFile> files_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> packed_;  // text as tokens; behind pointers, since views borrow
  std::vector<TokenPart> parts_;
  std::vector<std::int64_t> embedding_and_lm_head_;  // of the parts
  int vocab_ = 0;
};

/// Calls `take(ids)` for piece after piece of a text that is one document: its tokens, then the one that ends a text,
/// unless that is the one that starts the next document. `progress` gets the bytes that are done; either may be called
/// once for all. Errors: those of Tokenizer::encode() and of `take`.
Status encode_document(const Tokenizer& tokenizer, std::string_view text,
                       const std::function<Status(std::span<const TokenId>)>& take,
                       const std::function<void(std::uint64_t)>& progress);

}  // namespace butterfly
