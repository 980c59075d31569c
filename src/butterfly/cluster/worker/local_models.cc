#include "butterfly/cluster/worker/local_models.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "butterfly/base/log.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  std::string path;
  std::int64_t changed = 0;
};

std::int64_t change_time(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  return error ? 0 : static_cast<std::int64_t>(time.time_since_epoch().count());
}

/// A directory has changed when one of its files has.
std::int64_t directory_change_time(const fs::path& path) {
  std::int64_t latest = change_time(path);
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    latest = std::max(latest, change_time(it->path()));
  }
  return latest;
}

bool is_model_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path / "config.json", error);
}

Result<std::vector<Candidate>> scan(const std::string& directory) {
  std::vector<Candidate> found;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, fs::directory_options::skip_permission_denied, error);
  if (is_model_directory(directory)) found.push_back({directory, directory_change_time(directory)});
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    std::error_code ignored;  // a file may vanish during the scan
    if (it.depth() >= LocalModels::kDepthMax) it.disable_recursion_pending();
    if (it->is_regular_file(ignored)) {
      found.push_back({it->path().string(), change_time(it->path())});
    } else if (it->is_directory(ignored) && is_model_directory(it->path())) {
      found.push_back({it->path().string(), directory_change_time(it->path())});
    }
  }
  if (error) return make_error(ErrorCode::kIo, "cannot scan {}: {}", directory, error.message());
  std::ranges::sort(found, {}, &Candidate::path);
  return found;
}

}  // namespace

LocalModels::LocalModels(std::string directory, ContentFunctions content)
    : directory_(std::move(directory)), content_(std::move(content)) {}

bool LocalModels::matches(const std::string& path, std::int64_t changed, const std::string& hash, std::uint64_t bytes) {
  const auto size = content_.bytes(path);
  if (!size || *size != bytes) return false;
  Known& known = known_[path];
  if (known.hash.empty() || known.changed != changed || known.bytes != bytes) {
    const auto actual = content_.hash(path);
    if (!actual) {
      log().warn("cannot hash {}: {}", path, actual.error().message);
      return false;
    }
    known = {.changed = changed, .bytes = bytes, .hash = *actual};
  }
  return known.hash == hash;
}

Result<std::optional<std::string>> LocalModels::find(const std::string& hash, std::uint64_t bytes) {
  if (directory_.empty() || !content_.bytes || !content_.hash || hash.empty()) return std::nullopt;
  BF_ASSIGN_OR_RETURN(const auto candidates, scan(directory_));
  std::lock_guard lock(mutex_);
  for (const Candidate& candidate : candidates) {
    if (matches(candidate.path, candidate.changed, hash, bytes)) return candidate.path;
  }
  return std::nullopt;
}

std::optional<std::string> LocalModels::found(const std::string& hash) const {
  std::lock_guard lock(mutex_);
  for (const auto& [path, known] : known_) {
    if (known.hash == hash) return path;
  }
  return std::nullopt;
}

}  // namespace butterfly
