#include "butterfly/train/checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "butterfly/base/descriptor.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

tl::unexpected<Error> failed(const std::string& path, const char* what, int reason) {
  return make_error(ErrorCode::kIo, "{}: cannot be {}: {}", path, what, std::strerror(reason));
}

class DiskFiles final : public CheckpointFiles {
 public:
  Status create_directory(const std::string& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) return failed(path, "created", error.value());
    return {};
  }

  Status write(const std::string& path, ByteSpan bytes) override {
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file.valid()) return failed(path, "created", errno);
    while (!bytes.empty()) {
      constexpr std::size_t kAtOnce = std::size_t{1} << 30;  // the system takes no more than 2 GiB
      const ssize_t written = ::write(file.get(), bytes.data(), std::min(bytes.size(), kAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failed(path, "written", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    if (::fsync(file.get()) != 0) return failed(path, "written", errno);
    return {};
  }

  Status sync_directory(const std::string& path) override {
    const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory.valid() || ::fsync(directory.get()) != 0) return failed(path, "written", errno);
    return {};
  }

  Status replace(const std::string& from, const std::string& to) override {
    std::error_code error;
    const unsigned how = fs::exists(to, error) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), how) != 0) return failed(to, "put in place", errno);
    return {};
  }

  Status remove(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return failed(path, "removed", error.value());
    return {};
  }
};

}  // namespace

CheckpointFiles& disk_files() {
  static DiskFiles files;
  return files;
}

}  // namespace butterfly
