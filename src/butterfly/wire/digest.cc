#include "butterfly/wire/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "butterfly/base/check.h"

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
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

}  // namespace butterfly
