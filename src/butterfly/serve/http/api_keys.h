// Who may use a server: a file with a key on each line, "KEY" or "NAME:KEY". Immutable, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/result.h"

namespace butterfly {

class ApiKeys {
 public:
  ApiKeys() = default;  // everyone may

  /// Errors: kNotFound, kIo; kInvalidArgument where others may read the file, for short keys and for none.
  static Result<ApiKeys> read(const std::string& path);

  bool empty() const { return keys_.empty(); }

  /// The name of the key in "Authorization: Bearer KEY"; nothing for any other. The time that it takes tells nothing
  /// about keys.
  std::optional<std::string> user_of(const std::string& authorization) const;

 private:
  struct Key {
    std::string name;
    Sha256 digest;
  };
  std::vector<Key> keys_;
};

}  // namespace butterfly
