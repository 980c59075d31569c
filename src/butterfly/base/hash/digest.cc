#include "butterfly/base/hash/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/base/descriptor.h"

namespace butterfly {

Sha256 sha256(ByteSpan bytes) {
  Sha256 digest{};
  unsigned int length = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &length,
                              EVP_sha256(), nullptr);
  BF_CHECK(done == 1 && length == digest.size(), "SHA-256 failed");
  return digest;
}

std::string to_hex(ByteSpan bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::optional<std::vector<std::byte>> from_hex(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

struct Sha256Hasher::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
  bool ok = false;
};

Sha256Hasher::Sha256Hasher() : context_(std::make_unique<Context>()) {
  context_->ok = EVP_DigestInit_ex(context_->digest.get(), EVP_sha256(), nullptr) == 1;
}

Sha256Hasher::~Sha256Hasher() = default;

void Sha256Hasher::add(ByteSpan bytes) {
  context_->ok = context_->ok && EVP_DigestUpdate(context_->digest.get(), bytes.data(), bytes.size()) == 1;
}

Status Sha256Hasher::add_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return make_error(ErrorCode::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
  std::vector<std::byte> buffer(1 << 20);
  ssize_t got = 0;
  while ((got = ::read(file.get(), buffer.data(), buffer.size())) > 0) {
    add(ByteSpan(buffer.data(), static_cast<std::size_t>(got)));
  }
  if (got < 0) return make_error(ErrorCode::kIo, "{}: cannot be read: {}", path, std::strerror(errno));
  return {};
}

Result<std::string> Sha256Hasher::finish() {
  Sha256 digest{};
  unsigned int length = 0;
  const bool ok = context_->ok && EVP_DigestFinal_ex(context_->digest.get(),
                                                     reinterpret_cast<unsigned char*>(digest.data()), &length) == 1;
  if (!ok || length != digest.size()) return make_error(ErrorCode::kUnsupported, "OpenSSL offers no SHA-256");
  return to_hex(digest);
}

}  // namespace butterfly
