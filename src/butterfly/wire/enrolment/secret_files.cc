#include "butterfly/wire/enrolment/secret_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "butterfly/base/read_file.h"

namespace butterfly {
namespace {

tl::unexpected<Error> failed(const std::string& path, const char* what) {
  const int error = errno;
  return make_error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot {} {}: {}", what, path,
                    system_message(error));
}

}  // namespace

Status make_secret_folder(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(folder).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) return failed(folder, "make");
  if (::chmod(folder.c_str(), S_IRWXU) != 0) return failed(folder, "set the mode of");
  return {};
}

Result<std::string> read_file(const std::string& path, FileAccess access, std::size_t bytes_max) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return failed(path, "open");
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return failed(path, "look at");
  if (access == FileAccess::kOwnerOnly && (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} has mode {:04o}, others than its owner may use it: a secret has 0600 (chmod 600, after making "
        "sure that nobody has read it)",
        path, about.st_mode & 07777u);
  }
  return read_to_end(fd, path, bytes_max);
}

Status write_file(const std::string& path, const std::string& content, FileAccess access) {
  const std::string fresh = path + ".new";
  const mode_t mode = access == FileAccess::kOwnerOnly ? S_IRUSR | S_IWUSR : S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  ::unlink(fresh.c_str());
  {
    const Descriptor fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (!fd.valid()) return failed(fresh, "write");
    std::string_view rest = content;
    while (!rest.empty()) {
      const ssize_t wrote = ::write(fd.get(), rest.data(), rest.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return failed(fresh, "write");
      rest.remove_prefix(static_cast<std::size_t>(wrote));
    }
    if (::fsync(fd.get()) != 0) return failed(fresh, "write");
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return failed(path, "replace");
  // The new name is on the disk only when its folder is.
  const Descriptor folder(
      ::open(std::filesystem::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) ::fsync(folder.get());
  return {};
}

Result<FolderLock> FolderLock::take(const std::string& folder) {
  const std::string path = folder + "/lock";
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!fd.valid()) return failed(path, "open");
  const Deadline deadline = after_ms(10'000);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return failed(path, "lock");
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(ErrorCode::kTimeout, "another process holds {}", path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return FolderLock(std::move(fd));
}

}  // namespace butterfly
