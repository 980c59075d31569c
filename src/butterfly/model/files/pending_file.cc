#include "butterfly/model/files/pending_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace butterfly {

Status PendingFile::open() {
  struct stat info {};
  if (::stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: exists and is no regular file", path_);
  }
  // A name that is taken may be a link to another file, or the file of another writer: it stays as it is.
  constexpr int kNamesMost = 1000;
  for (int number = 0; !file_.valid(); ++number) {
    const std::string name = fmt::format("{}.partial-{}-{}", path_, ::getpid(), number);
    file_ = Descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file_.valid()) temporary_ = name;
    if (!file_.valid() && (errno != EEXIST || number == kNamesMost)) return fail("created");
  }
  return {};
}

Status PendingFile::write(const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file_.get(), data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail("written");
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return {};
}

Status PendingFile::overwrite(std::size_t offset, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::pwrite(file_.get(), data, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail("written");
    data += written;
    offset += static_cast<std::size_t>(written);
    size -= static_cast<std::size_t>(written);
  }
  return {};
}

Status PendingFile::commit() {
  if (::fsync(file_.get()) != 0) return fail("written");
  if (::close(file_.release()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) return fail("written");
  temporary_.clear();
  // The new name lasts once the folder is on disk too; the file is complete either way.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const Descriptor directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid()) (void)::fsync(directory.get());
  return {};
}

/// Reads errno, then removes what was written.
tl::unexpected<Error> PendingFile::fail(const char* what) {
  const int reason = errno;
  discard();
  return make_error(ErrorCode::kIo, "{}: cannot be {}: {}", path_, what, std::strerror(reason));
}

void PendingFile::discard() {
  file_ = Descriptor();
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

}  // namespace butterfly
