#include "butterfly/train/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "butterfly/base/hash/digest.h"

namespace butterfly {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are little-endian in files and used as they are");

constexpr std::string_view kMagic = "BFTOKENS";
constexpr std::uint32_t kTokenFileVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t width;
  std::uint32_t vocab;
  std::uint32_t reserved;
  std::uint64_t count;
  std::byte hash[32];
};
static_assert(sizeof(Header) == kTokenHeaderBytes);

Status check(const Header& header, std::size_t bytes, const std::string& name) {
  if (header.version != kTokenFileVersion) {
    return make_error(ErrorCode::kBadData, "{}: is version {} of token files, this program reads {}", name,
                      header.version, kTokenFileVersion);
  }
  if (header.vocab == 0 || header.vocab > std::uint32_t{1} << 30) {
    return make_error(ErrorCode::kBadData, "{}: the vocabulary has {} tokens, expected 1 to 2^30", name, header.vocab);
  }
  const auto width = static_cast<std::uint32_t>(token_width(static_cast<int>(header.vocab)));
  if (header.width != width) {
    return make_error(ErrorCode::kBadData, "{}: an id has {} bytes, a vocabulary of {} tokens needs {}", name,
                      header.width, header.vocab, width);
  }
  const auto size = checked_multiply(header.count, header.width);
  if (!size || *size != bytes - sizeof(Header) || header.count == 0) {
    return make_error(ErrorCode::kBadData, "{}: the header says {} tokens of {} bytes, {} bytes follow it", name,
                      header.count, header.width, bytes - sizeof(Header));
  }
  return {};
}

}  // namespace

VocabularyHash hash_of(const Vocabulary& vocabulary) {
  std::string all;
  for (const std::string& piece : vocabulary.pieces) {
    const auto size = static_cast<std::uint32_t>(piece.size());
    all.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(piece);
  }
  return sha256(as_bytes(all));
}

int token_width(int vocab) {
  return vocab <= 1 << 16 ? 2 : 4;
}

std::array<std::byte, kTokenHeaderBytes> token_file_header(int vocab, const VocabularyHash& hash, std::uint64_t count) {
  Header header{.magic = {},
                .version = kTokenFileVersion,
                .width = static_cast<std::uint32_t>(token_width(vocab)),
                .vocab = static_cast<std::uint32_t>(vocab),
                .reserved = 0,
                .count = count,
                .hash = {}};
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  std::copy(hash.begin(), hash.end(), header.hash);
  return std::bit_cast<std::array<std::byte, kTokenHeaderBytes>>(header);
}

TokenView TokenView::part(std::int64_t begin, std::int64_t count) const {
  return {bytes_.subspan(static_cast<std::size_t>(begin) * width_, static_cast<std::size_t>(count) * width_),
          static_cast<int>(width_)};
}

void TokenView::copy(std::int64_t begin, std::span<TokenId> ids) const {
  const std::byte* from = bytes_.data() + static_cast<std::size_t>(begin) * width_;
  for (TokenId& id : ids) {
    std::uint32_t value = 0;
    std::memcpy(&value, from, width_);
    id = TokenId(static_cast<std::int32_t>(value));
    from += width_;
  }
}

Result<TokenFile> TokenFile::parse(ByteSpan bytes, const std::string& name) {
  Header header{};
  if (bytes.size() < sizeof(header)) {
    return make_error(ErrorCode::kBadData, "{}: has {} bytes, the header of a token file has {}", name, bytes.size(),
                      sizeof(header));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::string_view(header.magic, sizeof(header.magic)) != kMagic) {
    return make_error(ErrorCode::kBadData, "{}: does not begin with \"{}\", so it is no token file", name, kMagic);
  }
  BF_TRY(check(header, bytes.size(), name));
  TokenFile file;
  file.tokens_ = TokenView(bytes.subspan(sizeof(header)), static_cast<int>(header.width));
  file.vocab_ = static_cast<int>(header.vocab);
  std::copy(std::begin(header.hash), std::end(header.hash), file.hash_.begin());
  return file;
}

Result<TokenFile> TokenFile::open(const std::string& path) {
  BF_ASSIGN_OR_RETURN(auto mapped, MappedFile::open(path));
  BF_ASSIGN_OR_RETURN(TokenFile file, parse(mapped->bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

TokenFileWriter::TokenFileWriter(const std::string& path, int vocab, const VocabularyHash& hash)
    : path_(path), vocab_(vocab), hash_(hash), file_(std::make_unique<PendingFile>(path)) {}

Result<TokenFileWriter> TokenFileWriter::create(const std::string& path, int vocab, const VocabularyHash& hash) {
  TokenFileWriter writer(path, vocab, hash);
  BF_TRY(writer.file_->open());
  const std::array<char, kTokenHeaderBytes> empty{};
  BF_TRY(writer.file_->write(empty.data(), empty.size()));
  return writer;
}

Status TokenFileWriter::append(std::span<const TokenId> ids) {
  const auto width = static_cast<std::size_t>(token_width(vocab_));
  std::vector<char> packed(ids.size() * width);
  char* to = packed.data();
  for (TokenId id : ids) {
    if (id.value < 0 || id.value >= vocab_) {
      return make_error(ErrorCode::kInvalidArgument, "{}: token {} is outside the vocabulary of {}", path_, id.value,
                        vocab_);
    }
    std::memcpy(to, &id.value, width);
    to += width;
  }
  BF_TRY(file_->write(packed.data(), packed.size()));
  count_ += ids.size();
  return {};
}

Status TokenFileWriter::finish() {
  if (count_ == 0) return make_error(ErrorCode::kInvalidArgument, "{}: would hold 0 tokens", path_);
  const auto header = token_file_header(vocab_, hash_, count_);
  BF_TRY(file_->overwrite(0, reinterpret_cast<const char*>(header.data()), header.size()));
  return file_->commit();
}

}  // namespace butterfly
