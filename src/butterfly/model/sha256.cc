#include "butterfly/model/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace butterfly {

struct Sha256::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
  bool ok = false;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  context_->ok = EVP_DigestInit_ex(context_->digest.get(), EVP_sha256(), nullptr) == 1;
}

Sha256::~Sha256() = default;

void Sha256::add(ByteSpan bytes) {
  context_->ok = context_->ok && EVP_DigestUpdate(context_->digest.get(), bytes.data(), bytes.size()) == 1;
}

Status Sha256::add_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return make_error(ErrorCode::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
  std::vector<std::byte> buffer(1 << 20);
  ssize_t got = 0;
  while ((got = ::read(file, buffer.data(), buffer.size())) > 0) {
    add(ByteSpan(buffer.data(), static_cast<std::size_t>(got)));
  }
  const int reason = errno;
  ::close(file);
  if (got < 0) return make_error(ErrorCode::kIo, "{}: cannot be read: {}", path, std::strerror(reason));
  return {};
}

Result<std::string> Sha256::finish() {
  unsigned char digest[32];
  unsigned int length = 0;
  const bool ok = context_->ok && EVP_DigestFinal_ex(context_->digest.get(), digest, &length) == 1;
  if (!ok || length != sizeof(digest)) return make_error(ErrorCode::kUnsupported, "OpenSSL offers no SHA-256");
  std::string text;
  for (unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace butterfly
