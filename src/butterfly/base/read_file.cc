#include "butterfly/base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace butterfly {

Result<std::string> read_to_end(const Descriptor& file, const std::string& path, std::size_t bytes_max) {
  constexpr std::size_t kPieceLeast = 4096, kPieceMost = std::size_t{1} << 30;
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", path, std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) return make_error(ErrorCode::kBadData, "{}: is a directory, expected a file", path);
  const std::size_t announced = S_ISREG(info.st_mode) ? static_cast<std::size_t>(info.st_size) : 0;
  std::string text;
  for (std::size_t have = 0;;) {
    // One byte more than announced finds the end without another allocation; else ever larger pieces.
    const std::size_t piece =
        std::clamp(have == 0 ? std::min(announced, bytes_max) + 1 : have, kPieceLeast, kPieceMost);
    text.resize(have + piece);
    const ssize_t got = ::read(file.get(), text.data() + have, piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return make_error(ErrorCode::kIo, "{}: cannot be read: {}", path, std::strerror(errno));
    have += static_cast<std::size_t>(got);
    if (have > bytes_max) return make_error(ErrorCode::kBadData, "{}: is longer than {} bytes", path, bytes_max);
    text.resize(have);
    if (got == 0) return text;
  }
}

Result<std::string> read_file(const std::string& path, std::size_t bytes_max) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) return read_to_end(file, path, bytes_max);
  if (errno == ENOENT || errno == ENOTDIR) return make_error(ErrorCode::kNotFound, "{}: there is no such file", path);
  return make_error(ErrorCode::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
}

}  // namespace butterfly
