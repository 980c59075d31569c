#include "butterfly/train/data/token_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "butterfly/base/hash/digest.h"
#include "butterfly/model/files/mapped_file.h"

namespace butterfly {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;

bool is_packed(const std::string& path) {
  return path.ends_with(".tokens");
}

bool is_white(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\v' || c == '\f';
}

/// A text may be cut behind a lone line end between two lines that begin and end with ASCII: no pre-token of the
/// published patterns, and no special token without a line end, goes across it.
bool may_be_cut(const Vocabulary& vocabulary) {
  if (vocabulary.kind != TokenizerKind::kByteBpe || vocabulary.pre_tokenizer == PreTokenizer::kCustom) return false;
  if (vocabulary.add_space_prefix || !vocabulary.strip_before.empty() || !vocabulary.strip_after.empty()) return false;
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const bool normal = vocabulary.types[id] == TokenType::kNormal;
    if (!normal && vocabulary.pieces[id].find('\n') != std::string::npos) return false;
  }
  return true;
}

/// Where the first piece of at least kPieceBytes ends.
std::size_t piece_end(std::string_view text) {
  for (std::size_t at = kPieceBytes; at + 1 < text.size(); ++at) {
    at = text.find('\n', at);
    if (at == std::string_view::npos || at + 1 >= text.size()) break;
    const char before = text[at - 1], after = text[at + 1];
    const bool ascii = static_cast<signed char>(before) > 0 && static_cast<signed char>(after) > 0;
    if (ascii && !is_white(before) && !is_white(after)) return at + 1;
  }
  return text.size();
}

const TokenFile* opened(const std::string& path, const DatasetOptions& options) {
  if (options.opened == nullptr) return nullptr;
  const auto found = options.opened->find(path);
  return found == options.opened->end() ? nullptr : &found->second;
}

void pack(std::span<const TokenId> ids, int width, std::vector<std::byte>& packed) {
  const std::size_t begin = packed.size();
  packed.resize(begin + ids.size() * static_cast<std::size_t>(width));
  std::byte* to = packed.data() + begin;
  for (TokenId id : ids) {
    std::memcpy(to, &id.value, static_cast<std::size_t>(width));
    to += width;
  }
}

}  // namespace

Status encode_document(const Tokenizer& tokenizer, std::string_view text,
                       const std::function<Status(std::span<const TokenId>)>& take,
                       const std::function<void(std::uint64_t)>& progress) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  const bool cut = may_be_cut(vocabulary);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t size = cut ? piece_end(text.substr(begin)) : text.size();
    const auto ids = tokenizer.encode(text.substr(begin, size), {.add_bos = begin == 0});
    if (!ids) return make_error(ids.error().code, "from byte {}: {}", begin, ids.error().message);
    BF_TRY(take(*ids));
    begin += size;
    if (progress) progress(begin);
  }
  const bool next_begins_so = vocabulary.add_bos && vocabulary.bos == vocabulary.eos;
  return vocabulary.eos.value >= 0 && !next_begins_so ? take(std::span(&vocabulary.eos, 1)) : Status{};
}

Result<TokenSource> TokenSource::open(const std::vector<std::string>& files, const DatasetOptions& options) {
  TokenSource source;
  source.vocab_ = options.vocab;
  if (source.vocab_ == 0 && options.tokenizer != nullptr) source.vocab_ = options.tokenizer->vocabulary().size();
  std::uint64_t total = 0, done = 0;
  for (const std::string& path : files) {
    std::error_code ignored;  // the call that opens it says what is wrong
    const bool has_tokens = is_packed(path) || opened(path, options) != nullptr;
    const std::uint64_t size = has_tokens ? 0 : std::filesystem::file_size(path, ignored);
    if (!ignored) total += size;
  }
  for (const std::string& path : files) {
    if (const TokenFile* known = opened(path, options)) {
      BF_TRY(source.add_packed(path, *known, options));
    } else if (is_packed(path)) {
      BF_ASSIGN_OR_RETURN(TokenFile file, TokenFile::open(path));
      BF_TRY(source.add_packed(path, std::move(file), options));
    } else {
      BF_TRY(source.add_text(path, options, done, total));
    }
  }
  return source;
}

Status TokenSource::add_packed(const std::string& path, TokenFile file, const DatasetOptions& options) {
  if (vocab_ == 0) vocab_ = file.vocab();
  if (file.vocab() > vocab_) {
    return make_error(ErrorCode::kInvalidArgument, "{}: is of a vocabulary of {} tokens, the model has {}", path,
                      file.vocab(), vocab_);
  }
  if (options.tokenizer != nullptr && file.hash() != VocabularyHash{}) {
    const Vocabulary& vocabulary = options.tokenizer->vocabulary();
    const VocabularyHash hash = hash_of(vocabulary);
    if (hash != file.hash()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: was packed with another tokenizer ({} tokens, {}...) than this one ({} tokens, {}...)",
                        path, file.vocab(), to_hex(file.hash()).substr(0, 12), vocabulary.size(),
                        to_hex(hash).substr(0, 12));
    }
  }
  add_part({.file = path, .tokens = file.tokens(), .vocab = file.vocab(), .hash = file.hash()});
  files_.push_back(std::move(file));
  return {};
}

Status TokenSource::add_text(const std::string& path, const DatasetOptions& options, std::uint64_t& done,
                             std::uint64_t total) {
  if (options.tokenizer == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: is text, and there is no tokenizer to read it with: data.tokenizer is not set", path);
  }
  const Tokenizer& tokenizer = *options.tokenizer;
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (vocabulary.size() > vocab_) {
    return make_error(ErrorCode::kInvalidArgument, "the tokenizer has {} tokens, the model has {}", vocabulary.size(),
                      vocab_);
  }
  BF_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  auto packed = std::make_unique<std::vector<std::byte>>();
  const int width = token_width(vocab_);
  const Status read = encode_document(
      tokenizer, as_text(file->bytes()),
      [&](std::span<const TokenId> ids) -> Status {
        pack(ids, width, *packed);
        return {};
      },
      [&](std::uint64_t bytes) {
        if (options.progress) options.progress(done + bytes, total);
      });
  if (!read) return make_error(read.error().code, "{}: {}", path, read.error().message);
  BF_TRY(file->unchanged());
  done += file->bytes().size();
  packed->shrink_to_fit();
  add_part({.file = path, .tokens = TokenView(*packed, width), .vocab = vocab_, .hash = hash_of(vocabulary)});
  packed_.push_back(std::move(packed));
  return {};
}

void TokenSource::add_part(TokenPart part) {
  embedding_and_lm_head_.push_back(size() + part.tokens.size());
  parts_.push_back(std::move(part));
}

std::size_t TokenSource::part_with(std::int64_t at) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(embedding_and_lm_head_, at) -
                                  embedding_and_lm_head_.begin());
}

void TokenSource::copy(std::int64_t begin, std::span<TokenId> ids) const {
  std::size_t part = part_with(begin);
  while (!ids.empty()) {
    const TokenView& tokens = parts_[part].tokens;
    const std::int64_t first = embedding_and_lm_head_[part] - tokens.size();
    const auto here = std::min<std::size_t>(ids.size(), static_cast<std::size_t>(embedding_and_lm_head_[part] - begin));
    tokens.copy(begin - first, ids.first(here));
    ids = ids.subspan(here);
    begin += static_cast<std::int64_t>(here);
    ++part;
  }
}

Result<std::vector<std::uint64_t>> TokenSource::counts(std::int64_t begin, std::int64_t count) const {
  std::vector<std::uint64_t> found(static_cast<std::size_t>(vocab_), 0);
  std::vector<TokenId> ids(1 << 14);
  for (std::int64_t done = 0; done < count;) {
    const auto here = std::min<std::int64_t>(count - done, static_cast<std::int64_t>(ids.size()));
    copy(begin + done, std::span(ids).first(static_cast<std::size_t>(here)));
    for (std::int64_t i = 0; i < here; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(i)].value;
      if (id < 0 || id >= vocab_) {
        return make_error(ErrorCode::kBadData, "{}: token {} of the corpus is {}, the vocabulary has {} tokens",
                          parts_[part_with(begin + done + i)].file, begin + done + i, id, vocab_);
      }
      ++found[static_cast<std::size_t>(id)];
    }
    done += here;
  }
  return found;
}

Result<std::string> TokenSource::digest(std::int64_t begin, std::int64_t count) const {
  Sha256Hasher hash;
  std::vector<TokenId> ids(1 << 14);
  for (std::int64_t done = 0; done < count;) {
    const auto here = std::min<std::int64_t>(count - done, static_cast<std::int64_t>(ids.size()));
    const std::span<TokenId> piece = std::span(ids).first(static_cast<std::size_t>(here));
    copy(begin + done, piece);
    hash.add(std::as_bytes(piece));
    done += here;
  }
  return hash.finish();
}

Status TokenSource::unchanged() const {
  for (const TokenFile& file : files_) BF_TRY(file.unchanged());
  return {};
}

}  // namespace butterfly
