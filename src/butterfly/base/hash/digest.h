// SHA-256 by OpenSSL: of bytes at once, of bytes that arrive in pieces, of a file; and digests as text.
// The functions are thread-safe, a Sha256Hasher is not.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(ByteSpan bytes);

/// Lower-case.
std::string to_hex(ByteSpan bytes);

/// What to_hex() was given; nothing for anything that it does not write.
std::optional<std::vector<std::byte>> from_hex(std::string_view text);

class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(const Sha256Hasher&) = delete;
  Sha256Hasher& operator=(const Sha256Hasher&) = delete;

  void add(ByteSpan bytes);

  /// The content of the file. Errors: kIo naming the path and the system's reason.
  Status add_file(const std::string& path);

  /// Lower-case hex; call it once. Errors: kUnsupported where OpenSSL has no SHA-256.
  Result<std::string> finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace butterfly
