#include "butterfly/model/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace butterfly {
namespace {

struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return make_error(code, "{}: cannot be opened: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.value, &info) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot be examined: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return make_error(ErrorCode::kBadData, "{}: is no regular file", path);
  if (info.st_size == 0) return make_error(ErrorCode::kBadData, "{}: is empty", path);
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (address == MAP_FAILED) {
    return make_error(ErrorCode::kIo, "{}: cannot be mapped: {}", path, std::strerror(errno));
  }
  const ByteSpan bytes(static_cast<const std::byte*>(address), size);
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::drop(ByteSpan part) const {
  const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  if (begin < base || begin + part.size() > base + bytes_.size()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + part.size()) / page * page;
  // Advice only: a refusal costs memory, nothing else.
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace butterfly
