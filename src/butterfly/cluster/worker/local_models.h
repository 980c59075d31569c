// The models below a worker's --model-dir, found by content. Only paths that a scan of that directory produced are ever
// opened; a peer names a hash, never a path. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

/// How the content of a model is measured; given by the layer that knows model files.
struct ContentFunctions {
  std::function<Result<std::uint64_t>(const std::string& path)> bytes{};
  std::function<Result<std::string>(const std::string& path)> hash{};  // lower-case hex
  /// What these read, where it is more than a file or a directory; null: it is not.
  std::function<Result<std::vector<std::string>>(const std::string& path)> paths{};
};

class LocalModels {
 public:
  /// An empty directory name means that there are no local models.
  LocalModels(std::string directory, ContentFunctions content);

  /// The first file, or directory with a config.json, whose size and hash are these, up to kDepthMax levels down.
  /// Hashes only what has the right size, and that once until the file is another or was written to. Errors: kIo.
  Result<std::optional<std::string>> find(const std::string& hash, std::uint64_t bytes);

  /// Where find() has found this model; does not look again.
  std::optional<std::string> found(const std::string& hash) const;

  /// After find() or found(), and after the file was opened: whether it still is the one that was hashed, so that what
  /// was opened is. Errors: kBadData.
  Status check(const std::string& path) const;

  static constexpr int kDepthMax = 8;

 private:
  struct Known {
    std::string stamp{};  // of when it was hashed, taken before
    std::uint64_t bytes = 0;
    std::string hash{};
  };
  std::string stamp_of(const std::string& path) const;
  bool matches(const std::string& path, const std::string& hash, std::uint64_t bytes);

  const std::string directory_;
  const ContentFunctions content_;
  mutable std::mutex mutex_;
  std::map<std::string, Known> known_;
};

}  // namespace butterfly
