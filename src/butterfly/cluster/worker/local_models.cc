#include "butterfly/cluster/worker/local_models.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "butterfly/base/log.h"
#include "butterfly/model/files/file_stamp.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

bool is_model_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path / "config.json", error);
}

Result<std::vector<std::string>> scan(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, fs::directory_options::skip_permission_denied, error);
  if (is_model_directory(directory)) found.push_back(directory);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    std::error_code ignored;  // a file may vanish during the scan
    if (it.depth() >= LocalModels::kDepthMax) it.disable_recursion_pending();
    if (it->is_regular_file(ignored)) {
      found.push_back(it->path().string());
    } else if (it->is_directory(ignored) && is_model_directory(it->path())) {
      found.push_back(it->path().string());
    }
  }
  if (error) return make_error(ErrorCode::kIo, "cannot scan {}: {}", directory, error.message());
  std::ranges::sort(found);
  return found;
}

}  // namespace

LocalModels::LocalModels(std::string directory, ContentFunctions content)
    : directory_(std::move(directory)), content_(std::move(content)) {}

/// A directory has changed when one of its files has, a model in several files when one of these has.
std::string LocalModels::stamp_of(const std::string& path) const {
  std::error_code error;
  std::vector<std::string> stamps{file_stamp(path)};
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    stamps.push_back(it->path().filename().string() + "=" + file_stamp(it->path().string()));
  }
  const auto parts = content_.paths ? content_.paths(path) : Result<std::vector<std::string>>();
  for (const std::string& part : parts.value_or(std::vector<std::string>())) stamps.push_back(file_stamp(part));
  std::ranges::sort(stamps);
  return fmt::format("{}", fmt::join(stamps, " "));
}

bool LocalModels::matches(const std::string& path, const std::string& hash, std::uint64_t bytes) {
  const auto size = content_.bytes(path);
  if (!size || *size != bytes) return false;
  const std::string stamp = stamp_of(path);  // before it is read
  Known& known = known_[path];
  if (known.hash.empty() || known.stamp != stamp || known.bytes != bytes) {
    const auto actual = content_.hash(path);
    if (!actual) {
      log().warn("cannot hash {}: {}", path, actual.error().message);
      return false;
    }
    known = {.stamp = stamp, .bytes = bytes, .hash = *actual};
  }
  return known.hash == hash;
}

Result<std::optional<std::string>> LocalModels::find(const std::string& hash, std::uint64_t bytes) {
  if (directory_.empty() || !content_.bytes || !content_.hash || hash.empty()) return std::nullopt;
  BF_ASSIGN_OR_RETURN(const auto candidates, scan(directory_));
  std::lock_guard lock(mutex_);
  for (const std::string& candidate : candidates) {
    if (matches(candidate, hash, bytes)) return candidate;
  }
  return std::nullopt;
}

Status LocalModels::check(const std::string& path) const {
  const std::string stamp = stamp_of(path);
  std::lock_guard lock(mutex_);
  const auto known = known_.find(path);
  if (known != known_.end() && known->second.stamp == stamp) return {};
  return make_error(ErrorCode::kBadData, "{} is not what it was when it was hashed: {} now, {} then", path, stamp,
                    known != known_.end() ? known->second.stamp : "nothing");
}

std::optional<std::string> LocalModels::found(const std::string& hash) const {
  std::lock_guard lock(mutex_);
  for (const auto& [path, known] : known_) {
    if (known.hash == hash) return path;
  }
  return std::nullopt;
}

}  // namespace butterfly
