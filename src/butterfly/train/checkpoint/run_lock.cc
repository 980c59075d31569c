#include "butterfly/train/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "butterfly/base/log.h"
#include "butterfly/base/text/printable.h"

namespace butterfly {
namespace {

constexpr std::chrono::seconds kDying{1};  // a holder that was killed may take this long to be gone

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '-';
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

/// What the process that has the lock wrote into the file.
std::string holder_of(int file) {
  std::array<char, 80> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  return size > 0 ? printable({text.data(), static_cast<std::size_t>(size)}) : "a process that did not say its number";
}

/// Whether the file still has its name: the run before removes it at its end.
bool is_in_place(int file, const std::string& path) {
  struct stat mine {
  }, named{};
  return ::fstat(file, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
         mine.st_dev == named.st_dev;
}

bool has_no_locks(int reason) {
  return reason == ENOLCK || reason == EOPNOTSUPP || reason == ENOSYS;
}

}  // namespace

Result<RunLock> RunLock::take(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return make_error(ErrorCode::kIo, "{}: cannot be created: {}", directory, error.message());
  const std::string path = directory + "/.lock";
  const auto deadline = std::chrono::steady_clock::now() + kDying;
  for (;;) {
    const bool last = std::chrono::steady_clock::now() >= deadline;
    RunLock lock(path, Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)));
    if (!lock.file_.valid()) return make_error(ErrorCode::kIo, "{}: cannot be created: {}", path, std::strerror(errno));
    const int reason = ::flock(lock.file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (reason == 0 && !is_in_place(lock.file_.get(), path)) lock.path_.clear();
    if (!last && (reason == EINTR || lock.path_.empty())) continue;
    if (reason == 0 && !lock.path_.empty()) {
      const std::string text = this_process();
      const bool said =
          ::ftruncate(lock.file_.get(), 0) == 0 && ::pwrite(lock.file_.get(), text.data(), text.size(), 0) > 0;
      if (!said) log().info("{}: cannot be written: {}", path, std::strerror(errno));
      return lock;
    }
    lock.path_.clear();  // another's
    if (reason == EWOULDBLOCK && !last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    if (reason == EWOULDBLOCK || reason == 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: {} trains into this folder, and so would this process, {}: give one of them another "
                        "checkpoint.directory",
                        directory, holder_of(lock.file_.get()), ::getpid());
    }
    if (!has_no_locks(reason)) {
      return make_error(ErrorCode::kIo, "{}: cannot be locked: {}", path, std::strerror(reason));
    }
    log().warn("{}: the file system has no locks, so a second run in this folder would not be noticed", directory);
    return lock;
  }
}

RunLock::RunLock(RunLock&& other) noexcept : path_(std::exchange(other.path_, {})), file_(std::move(other.file_)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::exchange(other.path_, {});
  file_ = std::move(other.file_);
  return *this;
}

RunLock::~RunLock() {
  release();
}

void RunLock::release() {
  // While it is locked, so that the name of another run's lock is never removed.
  if (file_.valid() && !path_.empty()) ::unlink(path_.c_str());
  file_ = Descriptor();
}

}  // namespace butterfly
