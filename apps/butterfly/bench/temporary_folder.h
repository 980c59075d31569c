// A folder of its own in the system's place for such, gone at the end. Used by one thread.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "butterfly/base/result.h"

namespace butterfly::app {

class TemporaryFolder {
 public:
  /// Errors: kIo.
  static Result<TemporaryFolder> create() {
    std::error_code failed;
    const std::filesystem::path place = std::filesystem::temp_directory_path(failed);
    if (failed)
      return make_error(ErrorCode::kIo, "there is no folder for temporary files (TMPDIR): {}", failed.message());
    TemporaryFolder folder;
    folder.path_ = (place / "butterfly-bench-XXXXXX").string();
    if (::mkdtemp(folder.path_.data()) != nullptr) return folder;
    return make_error(ErrorCode::kIo, "{}: cannot be made", std::exchange(folder.path_, {}));
  }

  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  TemporaryFolder() = default;
  std::string path_;
};

}  // namespace butterfly::app
