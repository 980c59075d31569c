// Packed token ids: views of them in memory, and files that are mapped (docs/formats/tokens.md). Views borrow; a
// TokenFile keeps its mapping. Immutable and thread-safe; a TokenFileWriter is for one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/files/pending_file.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// What the ids of a vocabulary mean: SHA-256 over the length and the bytes of each piece, in order. All zero: not
/// known.
using VocabularyHash = std::array<std::byte, 32>;
VocabularyHash hash_of(const Vocabulary& vocabulary);

/// Bytes of a packed id: 2 where all ids of the vocabulary fit, else 4.
int token_width(int vocab);

/// The first bytes of a token file; the ids follow.
inline constexpr std::size_t kTokenHeaderBytes = 64;
std::array<std::byte, kTokenHeaderBytes> token_file_header(int vocab, const VocabularyHash& hash, std::uint64_t count);

/// Ids of 2 or 4 bytes, little-endian.
class TokenView {
 public:
  TokenView() = default;
  /// `bytes` holds whole ids.
  TokenView(ByteSpan bytes, int width) : bytes_(bytes), width_(static_cast<std::size_t>(width)) {}

  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size() / width_); }
  ByteSpan bytes() const { return bytes_; }
  TokenView part(std::int64_t begin, std::int64_t count) const;
  /// ids[i] = the id at begin + i.
  void copy(std::int64_t begin, std::span<TokenId> ids) const;

 private:
  ByteSpan bytes_;
  std::size_t width_ = 2;
};

class TokenFile {
 public:
  /// Errors: those of MappedFile; those of parse().
  static Result<TokenFile> open(const std::string& path);
  /// `bytes` must outlive the object. Errors: kBadData naming what the header says and what is there. The ids
  /// themselves are not looked at.
  static Result<TokenFile> parse(ByteSpan bytes, const std::string& name);

  TokenView tokens() const { return tokens_; }
  int vocab() const { return vocab_; }
  const VocabularyHash& hash() const { return hash_; }

  /// Errors: those of MappedFile::unchanged(), where the bytes are a file's.
  Status unchanged() const { return file_ ? file_->unchanged() : Status{}; }

 private:
  std::shared_ptr<const MappedFile> file_;  // shared: the views that a dataset makes live as long
  TokenView tokens_;
  int vocab_ = 0;
  VocabularyHash hash_{};
};

/// Writes beside `path` and renames at the end, so that no reader sees half a file. Not finished: nothing is left.
class TokenFileWriter {
 public:
  /// Errors: those of PendingFile, here and below.
  static Result<TokenFileWriter> create(const std::string& path, int vocab, const VocabularyHash& hash);

  /// Errors: kInvalidArgument for an id outside the vocabulary.
  Status append(std::span<const TokenId> ids);
  /// Errors: kInvalidArgument where there was no id at all.
  Status finish();
  std::uint64_t count() const { return count_; }

 private:
  TokenFileWriter(const std::string& path, int vocab, const VocabularyHash& hash);

  std::string path_;
  int vocab_ = 0;
  VocabularyHash hash_{};
  std::unique_ptr<PendingFile> file_;  // behind a pointer: the writer moves
  std::uint64_t count_ = 0;
};

}  // namespace butterfly
