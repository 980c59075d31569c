// SHA-256 of bytes that arrive in pieces, by OpenSSL. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace butterfly {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(ByteSpan bytes);

  /// The content of the file. Errors: kIo naming the path and the system's reason.
  Status add_file(const std::string& path);

  /// Lower-case hex; once. Errors: kUnsupported where OpenSSL has no SHA-256.
  Result<std::string> finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace butterfly
